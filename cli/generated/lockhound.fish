# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_lockhound_global_optspecs
    string join \n h/help V/version
end

function __fish_lockhound_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_lockhound_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_lockhound_using_subcommand
    set -l cmd (__fish_lockhound_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c lockhound -n "__fish_lockhound_needs_command" -s h -l help -d 'Print help'
complete -c lockhound -n "__fish_lockhound_needs_command" -s V -l version -d 'Print version'
complete -c lockhound -n "__fish_lockhound_needs_command" -f -a "run" -d 'Waits for a lock, runs a command while it is held, and releases it'
complete -c lockhound -n "__fish_lockhound_needs_command" -f -a "ls" -d 'Lists the locks'
complete -c lockhound -n "__fish_lockhound_needs_command" -f -a "show" -d 'Shows who has a lock, and who waits for it'
complete -c lockhound -n "__fish_lockhound_needs_command" -f -a "top" -d 'Shows the locks, and keeps showing them'
complete -c lockhound -n "__fish_lockhound_needs_command" -f -a "watch" -d 'Writes a line for each change of a lock, until Ctrl-C'
complete -c lockhound -n "__fish_lockhound_needs_command" -f -a "break" -d 'Takes a lock away from those who have it, after a question'
complete -c lockhound -n "__fish_lockhound_needs_command" -f -a "doctor" -d 'Says which promises the servers keep, and what to change'
complete -c lockhound -n "__fish_lockhound_needs_command" -f -a "generate" -d 'Writes the completions for bash, fish and zsh, and the manual pages, into a directory'
complete -c lockhound -n "__fish_lockhound_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c lockhound -n "__fish_lockhound_using_subcommand run" -s w -l wait -d 'Wait for at most TIME, such as 500ms, 30s or 1h30m; otherwise it waits until it has the lock' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand run" -s E -l conflict-exit-code -d 'Exit code if the lock is held: of --no-wait (otherwise 1) and of --wait (otherwise 75)' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand run" -l on-lost -d 'What happens to the command if the lock is lost while it runs' -r -f -a "kill\t'It gets TERM, and KILL if it still runs after --kill-after'
warn\t'It continues, and a line on standard error says so'"
complete -c lockhound -n "__fish_lockhound_using_subcommand run" -l kill-after -d 'How long the command may continue after TERM, until KILL' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand run" -l min-hold -d 'Keep the lock for at least TIME, also if the command ends sooner; this returns at once' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand run" -l max-hold -d 'Hold the lock for at most TIME: then it is lost' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand run" -l lease -d 'How long the servers keep the lock if this machine dies (otherwise 30s); it is renewed every third of that' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand run" -l url -d 'Address of the server; repeat it for several independent ones (a quorum)' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand run" -l user -d 'Name of the user whose password is in a file or in LOCKHOUND_PASSWORD' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand run" -l password-file -d 'File with the password; LOCKHOUND_PASSWORD has it otherwise, or the address' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand run" -l ca-file -d 'File with the certificates (PEM) of the CAs to trust, in place of the system\'s' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand run" -l cert -d 'File with the certificate (PEM) to show to the servers' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand run" -l key -d 'File with the private key (PEM) of that certificate' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand run" -s n -l no-wait -d 'Do not wait if the lock is held'
complete -c lockhound -n "__fish_lockhound_using_subcommand run" -s v -l verbose -d 'Say what it waits for, and how it ends; -vv also shows what the library reports'
complete -c lockhound -n "__fish_lockhound_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c lockhound -n "__fish_lockhound_using_subcommand ls" -l url -d 'Address of the server; repeat it for several independent ones (a quorum)' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand ls" -l user -d 'Name of the user whose password is in a file or in LOCKHOUND_PASSWORD' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand ls" -l password-file -d 'File with the password; LOCKHOUND_PASSWORD has it otherwise, or the address' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand ls" -l ca-file -d 'File with the certificates (PEM) of the CAs to trust, in place of the system\'s' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand ls" -l cert -d 'File with the certificate (PEM) to show to the servers' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand ls" -l key -d 'File with the private key (PEM) of that certificate' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand ls" -l json -d 'Write an array of objects, one for each lock'
complete -c lockhound -n "__fish_lockhound_using_subcommand ls" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c lockhound -n "__fish_lockhound_using_subcommand show" -l url -d 'Address of the server; repeat it for several independent ones (a quorum)' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand show" -l user -d 'Name of the user whose password is in a file or in LOCKHOUND_PASSWORD' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand show" -l password-file -d 'File with the password; LOCKHOUND_PASSWORD has it otherwise, or the address' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand show" -l ca-file -d 'File with the certificates (PEM) of the CAs to trust, in place of the system\'s' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand show" -l cert -d 'File with the certificate (PEM) to show to the servers' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand show" -l key -d 'File with the private key (PEM) of that certificate' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand show" -l json -d 'Write an object, of the same shape as `ls` does'
complete -c lockhound -n "__fish_lockhound_using_subcommand show" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c lockhound -n "__fish_lockhound_using_subcommand top" -l interval -d 'Time between two refreshes' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand top" -l url -d 'Address of the server; repeat it for several independent ones (a quorum)' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand top" -l user -d 'Name of the user whose password is in a file or in LOCKHOUND_PASSWORD' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand top" -l password-file -d 'File with the password; LOCKHOUND_PASSWORD has it otherwise, or the address' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand top" -l ca-file -d 'File with the certificates (PEM) of the CAs to trust, in place of the system\'s' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand top" -l cert -d 'File with the certificate (PEM) to show to the servers' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand top" -l key -d 'File with the private key (PEM) of that certificate' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand top" -l json -d 'Write an array on a line at each refresh, of the same objects as `ls` does, and show no screen'
complete -c lockhound -n "__fish_lockhound_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c lockhound -n "__fish_lockhound_using_subcommand watch" -l interval -d 'Time between two questions' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand watch" -l url -d 'Address of the server; repeat it for several independent ones (a quorum)' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand watch" -l user -d 'Name of the user whose password is in a file or in LOCKHOUND_PASSWORD' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand watch" -l password-file -d 'File with the password; LOCKHOUND_PASSWORD has it otherwise, or the address' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand watch" -l ca-file -d 'File with the certificates (PEM) of the CAs to trust, in place of the system\'s' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand watch" -l cert -d 'File with the certificate (PEM) to show to the servers' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand watch" -l key -d 'File with the private key (PEM) of that certificate' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand watch" -l json -d 'Write an object on each line, of the same shape as `ls` does'
complete -c lockhound -n "__fish_lockhound_using_subcommand watch" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c lockhound -n "__fish_lockhound_using_subcommand break" -l url -d 'Address of the server; repeat it for several independent ones (a quorum)' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand break" -l user -d 'Name of the user whose password is in a file or in LOCKHOUND_PASSWORD' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand break" -l password-file -d 'File with the password; LOCKHOUND_PASSWORD has it otherwise, or the address' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand break" -l ca-file -d 'File with the certificates (PEM) of the CAs to trust, in place of the system\'s' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand break" -l cert -d 'File with the certificate (PEM) to show to the servers' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand break" -l key -d 'File with the private key (PEM) of that certificate' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand break" -s y -l yes -d 'Do not ask'
complete -c lockhound -n "__fish_lockhound_using_subcommand break" -l json -d 'Write what was broken as an object, of the same shape as `ls` does'
complete -c lockhound -n "__fish_lockhound_using_subcommand break" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c lockhound -n "__fish_lockhound_using_subcommand doctor" -l for -d 'Ask for the rights on the locks with these names; one for each pattern of names is enough' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand doctor" -l url -d 'Address of the server; repeat it for several independent ones (a quorum)' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand doctor" -l user -d 'Name of the user whose password is in a file or in LOCKHOUND_PASSWORD' -r
complete -c lockhound -n "__fish_lockhound_using_subcommand doctor" -l password-file -d 'File with the password; LOCKHOUND_PASSWORD has it otherwise, or the address' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand doctor" -l ca-file -d 'File with the certificates (PEM) of the CAs to trust, in place of the system\'s' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand doctor" -l cert -d 'File with the certificate (PEM) to show to the servers' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand doctor" -l key -d 'File with the private key (PEM) of that certificate' -r -F
complete -c lockhound -n "__fish_lockhound_using_subcommand doctor" -l json -d 'Write an object: `state` (kept, at risk, broken), `promises`, `servers` and `acl`'
complete -c lockhound -n "__fish_lockhound_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c lockhound -n "__fish_lockhound_using_subcommand generate" -s h -l help -d 'Print help'
complete -c lockhound -n "__fish_lockhound_using_subcommand help; and not __fish_seen_subcommand_from run ls show top watch break doctor generate help" -f -a "run" -d 'Waits for a lock, runs a command while it is held, and releases it'
complete -c lockhound -n "__fish_lockhound_using_subcommand help; and not __fish_seen_subcommand_from run ls show top watch break doctor generate help" -f -a "ls" -d 'Lists the locks'
complete -c lockhound -n "__fish_lockhound_using_subcommand help; and not __fish_seen_subcommand_from run ls show top watch break doctor generate help" -f -a "show" -d 'Shows who has a lock, and who waits for it'
complete -c lockhound -n "__fish_lockhound_using_subcommand help; and not __fish_seen_subcommand_from run ls show top watch break doctor generate help" -f -a "top" -d 'Shows the locks, and keeps showing them'
complete -c lockhound -n "__fish_lockhound_using_subcommand help; and not __fish_seen_subcommand_from run ls show top watch break doctor generate help" -f -a "watch" -d 'Writes a line for each change of a lock, until Ctrl-C'
complete -c lockhound -n "__fish_lockhound_using_subcommand help; and not __fish_seen_subcommand_from run ls show top watch break doctor generate help" -f -a "break" -d 'Takes a lock away from those who have it, after a question'
complete -c lockhound -n "__fish_lockhound_using_subcommand help; and not __fish_seen_subcommand_from run ls show top watch break doctor generate help" -f -a "doctor" -d 'Says which promises the servers keep, and what to change'
complete -c lockhound -n "__fish_lockhound_using_subcommand help; and not __fish_seen_subcommand_from run ls show top watch break doctor generate help" -f -a "generate" -d 'Writes the completions for bash, fish and zsh, and the manual pages, into a directory'
complete -c lockhound -n "__fish_lockhound_using_subcommand help; and not __fish_seen_subcommand_from run ls show top watch break doctor generate help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
