//! `lockhound run` in scripts: exit codes, pipes, environment, servers and passwords.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::tls::{Authority, HOSTS};
use crate::common::{
    Directory, PROGRAM, Running, Server, lockhound, said, soon, three_servers, urls, without_server,
};

/// Starts a command that holds this lock until it is dropped.
fn hold(server: &Server, key: &str) -> Running {
    let holder = Running::start(&mut lockhound(server, ["run", key, "--", "sleep", "1000"]));
    soon("it is held", || server.exists(key));
    holder
}

#[test]
fn the_status_is_that_of_the_command() {
    let server = Server::start();
    for (script, code) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -KILL $$", 137),
        ("kill -TERM $$", 143),
        ("kill -40 $$", 168),
    ] {
        let ended = said(&mut lockhound(
            &server,
            ["run", "k", "--", "sh", "-c", script],
        ));
        assert_eq!(
            (ended.code, &*ended.err),
            (Some(code), ""),
            "{script}: {ended:?}"
        );
        assert!(!server.exists("k"), "{script}");
    }
}

#[test]
fn a_command_that_cannot_be_started_ends_as_in_a_shell() {
    let server = Server::start();
    for (command, code, about) in [
        ("/nowhere/x", 127, "/nowhere/x: No such file"),
        ("no-such-command", 127, "no-such-command: No such file"),
        ("/etc/passwd", 126, "/etc/passwd: Permission denied"),
    ] {
        let ended = said(&mut lockhound(&server, ["run", "k", "--", command]));
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(ended.err.contains(about), "{ended:?}");
        assert!(!server.exists("k"), "{command}");
    }
}

#[test]
fn wrong_usage_ends_with_64() {
    let server = Server::start();
    let not_text = OsStr::from_bytes(b"a\xff");
    let refused: [(&[&OsStr], &str); 9] = [
        (&[], "Usage"),
        (&["run".as_ref(), "k".as_ref()], "<CMD>"),
        (&["run".as_ref(), "--".as_ref(), "true".as_ref()], "<KEY>"),
        (&["dance".as_ref()], "dance"),
        (
            &["run".as_ref(), not_text, "--".as_ref(), "true".as_ref()],
            "UTF-8",
        ),
        (
            &["run".as_ref(), "".as_ref(), "--".as_ref(), "true".as_ref()],
            "empty",
        ),
        (&["run", "k", "k", "--", "true"].map(OsStr::new), "twice"),
        (
            &["run", "-n", "--wait", "1s", "k", "--", "true"].map(OsStr::new),
            "cannot be used with",
        ),
        (
            &["run", "--wait", "soon", "k", "--", "true"].map(OsStr::new),
            "--wait",
        ),
    ];
    for (args, about) in refused {
        let ended = said(&mut lockhound(&server, args));
        assert_eq!(ended.code, Some(64), "{args:?}: {ended:?}");
        assert!(ended.err.contains(about), "{args:?}: {ended:?}");
        assert_eq!(ended.out, "", "{args:?}");
    }
    for (args, about) in [
        (&["--lease", "1ms"][..], "lease"),
        (&["--user", "ann"], "no password"),
        (&["--password-file", "/nowhere/p"], "/nowhere/p"),
        (&["--cert", "x"], "--key"),
        (&["--ca-file", "/nowhere/ca"], "tls"),
        (&["--url", "http://h"], "http://"),
        (&["--min-hold", "1"], "--min-hold"),
        (&["-E", "256"], "256"),
        // A name would have to begin with it.
        (&["-k"], "'-k'"),
        (&["--kill-after", "31d"], "30 days"),
        (&["a\nb"], "LOCKHOUND_KEY lists several"),
    ] {
        let args = [&["run"], args, &["k", "--", "true"]].concat();
        let ended = said(&mut lockhound(&server, &args));
        assert_eq!(ended.code, Some(64), "{args:?}: {ended:?}");
        assert!(ended.err.contains(about), "{args:?}: {ended:?}");
    }
    let nowhere = said(&mut without_server(["run", "k", "--", "true"]));
    assert_eq!(nowhere.code, Some(64), "{nowhere:?}");
    assert!(nowhere.err.contains("--url"), "{nowhere:?}");
}

#[test]
fn help_is_not_an_error() {
    for args in [&["--help"][..], &["run", "--help"], &["help", "run"]] {
        let ended = said(&mut without_server(args));
        assert_eq!((ended.code, &*ended.err), (Some(0), ""), "{args:?}");
        assert!(ended.out.contains("Usage: lockhound"), "{ended:?}");
    }
    let run = said(&mut without_server(["run", "-h"])).out;
    for code in [1, 64, 69, 70, 74, 75, 126, 127] {
        assert!(run.contains(&format!("\n  {code:<5}")), "{code}: {run}");
    }
}

#[test]
fn unwritable_output_does_not_change_what_a_code_means() {
    let shell = |line: &str| Command::new("sh").args(["-c", line]).status().unwrap();
    for (line, code) in [
        ("run 2>/dev/full", 64),
        ("--help >/dev/full", 70),
        ("--help | head -1 >/dev/null", 0),
    ] {
        assert_eq!(
            shell(&format!("{PROGRAM} {line}")).code(),
            Some(code),
            "{line}"
        );
    }
    let line = format!("ulimit -n 8; exec {PROGRAM} run --url redis://h k -- true");
    assert_eq!(shell(&line).code(), Some(70));
}

#[test]
fn a_lock_that_is_held_ends_it_without_the_command() {
    let server = Server::start();
    let holder = hold(&server, "k");
    for (options, code) in [
        (&["--no-wait"][..], 1),
        (&["-n", "-E", "9"], 9),
        (&["--wait", "200ms"], 75),
        (&["-w", "200ms", "--conflict-exit-code", "0"], 0),
        (&["--wait", "0s"], 75),
    ] {
        let args = [&["run"], options, &["k", "--", "echo", "inside"]].concat();
        let ended = said(&mut lockhound(&server, &args));
        assert_eq!(
            (ended.code, &*ended.out, &*ended.err),
            (Some(code), "", ""),
            "{options:?}"
        );
    }
    // One of several is enough.
    let both = said(&mut lockhound(
        &server,
        ["run", "-n", "free", "k", "--", "true"],
    ));
    assert_eq!(both.code, Some(1));
    assert!(!server.exists("free"));
    let waiting = Running::start(&mut lockhound(
        &server,
        ["run", "--wait", "60s", "k", "--", "echo", "inside"],
    ));
    holder.send(rustix::process::Signal::TERM);
    assert_eq!(holder.end().code, Some(143));
    let ended = waiting.end();
    assert_eq!((ended.code, &*ended.out), (Some(0), "inside\n"));
}

#[test]
fn verbose_names_the_holder() {
    let server = Server::start();
    let mut holder = lockhound(&server, ["run", "a b", "--", "sleep", "1000"]);
    let holder = Running::start(holder.env("LOCKHOUND_LABEL", "web 7"));
    soon("the label is there", || {
        server.exists("a b")
            && server
                .command::<Vec<String>>(&["KEYS", "lockhound_label:*"])
                .len()
                == 1
    });
    let args = ["run", "-v", "--wait", "1s", "a b", "--", "true"];
    let ended = said(&mut lockhound(&server, args));
    assert_eq!((ended.code, &*ended.out), (Some(75), ""));
    let waiting = "\"a b\" is held by web 7 (";
    assert!(
        ended.err.contains("of at most 1s: ") && ended.err.matches(waiting).count() == 2,
        "{ended:?}"
    );
    drop(holder);
    server.command::<()>(&["DEL", "a b"]);
    let ended = said(&mut lockhound(
        &server,
        ["run", "-v", "a b", "--", "sh", "-c", "exit 4"],
    ));
    assert_eq!(ended.code, Some(4));
    for line in ["locked \"a b\" after ", "ended after "] {
        assert!(ended.err.contains(line), "{ended:?}");
    }
}

#[test]
fn without_a_server_it_ends_with_69() {
    let server = Server::start_with(&["--requirepass", "secret"]);
    for args in [
        &["run", "-E", "9", "-n", "k", "--", "true"][..],
        &["run", "--url", "redis://127.0.0.1:1", "k", "--", "true"],
    ] {
        let mut command = lockhound(&server, args);
        let ended = said(command.env("LOCKHOUND_CONNECT_TIMEOUT", "300ms"));
        assert_eq!(ended.code, Some(69), "{ended:?}");
        assert!(ended.err.starts_with("lockhound: "), "{ended:?}");
        assert_eq!(ended.err.lines().count(), 1, "{ended:?}");
    }
}

#[test]
fn the_command_is_told_the_lock_and_its_fence() {
    let server = Server::start();
    let show = r#"printf '<%s>' "$LOCKHOUND_KEY" "$LOCKHOUND_FENCE" "$LOCKHOUND_OWNER""#;
    let key = "a key \n\"with\" ü";
    let mut command = lockhound(&server, ["run", key, "--", "sh", "-c", show]);
    let first = said(command.env("LOCKHOUND_PREFIX", "app:"));
    assert_eq!((first.code, &*first.err), (Some(0), ""));
    assert!(first.out.starts_with(&format!("<{key}><")), "{first:?}");
    let fence = |out: &str| {
        out.split('<')
            .nth(2)
            .unwrap()
            .trim_end_matches('>')
            .parse::<u64>()
    };
    let second = said(&mut command);
    assert!(fence(&second.out).unwrap() > fence(&first.out).unwrap());

    let owner = r#"redis-cli -p "$0" HKEYS k | grep -c "^$LOCKHOUND_OWNER:""#;
    let port = server.port().to_string();
    let args = ["run", "k", "--", "sh", "-c", owner, &port];
    let ended = said(&mut lockhound(&server, args));
    assert_eq!(&*ended.out, "1\n", "{ended:?}");
}

#[test]
fn several_locks_are_one() {
    let server = Server::start();
    let show = r#"printf '%s\n' "$LOCKHOUND_KEY" "$LOCKHOUND_FENCE"
        for key in b a; do "$0" show "$key" | sed -n 's/^fence *//p'; done"#;
    let args = ["run", "b", "a", "--", "sh", "-c", show, PROGRAM];
    let ended = said(&mut lockhound(&server, args));
    let lines: Vec<&str> = ended.out.lines().collect();
    let fences = [lines[4], lines[5]];
    assert_eq!(lines[..4], [&["b", "a"], &fences[..]].concat(), "{ended:?}");
    assert!(fences.iter().all(|it| it.parse::<u64>().is_ok()));
    assert_ne!(fences[0], fences[1]);
}

#[test]
fn a_server_that_goes_silent_ends_the_wait_after_a_lease() {
    let server = Server::start();
    let holder = hold(&server, "k");
    let args = ["run", "-v", "--lease", "1s", "k", "--", "true"];
    let mut waiting = Running::start(&mut lockhound(&server, args));
    assert!(waiting.line().contains("waiting for "));
    server.stop();
    let ended = waiting.end();
    server.go_on();
    assert_eq!(ended.code, Some(69), "{ended:?}");
    drop(holder);
}

#[test]
fn input_and_output_pass_through() {
    let server = Server::start();
    let script =
        format!("seq 200000 | {PROGRAM} run k -- tac | head -1; {PROGRAM} run k -- yes | head -1");
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &script])
        .env("LOCKHOUND_URL", server.url());
    let ended = said(&mut shell);
    assert_eq!((&*ended.out, &*ended.err), ("200000\ny\n", ""));
    soon("it is free", || !server.exists("k"));
}

#[test]
fn scripts_end_at_a_failure() {
    let server = Server::start();
    let holder = hold(&server, "held");
    let script = format!(
        "set -e; if {PROGRAM} run -n held -- true; then echo wrong; fi
        {PROGRAM} run k -- true; echo one; {PROGRAM} run k -- false; echo wrong"
    );
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &script])
        .env("LOCKHOUND_URL", server.url());
    let ended = said(&mut shell);
    assert_eq!(
        (ended.code, &*ended.out, &*ended.err),
        (Some(1), "one\n", "")
    );
    drop(holder);
}

#[test]
fn fifty_at_once_count_to_fifty() {
    let (server, directory) = (Server::start(), Directory::new());
    let counter = directory.file("counter");
    std::fs::write(&counter, "0").unwrap();
    let count = r#"read -r n <"$0" || :; sleep 0.01; echo $((n + 1)) >"$0""#;
    let run = || {
        let mut command = lockhound(&server, ["run", "counter", "--", "sh", "-c", count]);
        Running::start(command.arg(&counter))
    };
    let all: Vec<Running> = (0..50).map(|_| run()).collect();
    for one in all {
        let ended = one.end();
        assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    }
    assert_eq!(directory.read("counter"), "50\n");
}

#[test]
fn a_minimum_returns_at_once_and_keeps_the_lock() {
    let server = Server::start();
    let start = Instant::now();
    let args = ["run", "--min-hold", "2m", "job", "--", "echo", "done"];
    let ended = said(&mut lockhound(&server, args));
    assert_eq!((ended.code, &*ended.out), (Some(0), "done\n"));
    assert!(start.elapsed() < Duration::from_secs(60));
    let left = server.pttl("job");
    assert!((60_000..=120_000).contains(&left), "{left}");
    let again = said(&mut lockhound(&server, ["run", "-n", "job", "--", "true"]));
    assert_eq!(again.code, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_majority_of_three_servers_is_enough() {
    let servers = three_servers().await;
    let run = || {
        let urls = servers.iter().flat_map(|it| ["--url".to_owned(), it.url()]);
        let mut command = without_server(["run", "--lease", "1s"]);
        command.args(urls).args(["k", "--", "echo", "inside"]);
        said(&mut command)
    };
    // The variable may name all of them.
    let mut command = without_server(["run", "--lease", "1s", "k", "--", "echo", "inside"]);
    let three = said(command.env("LOCKHOUND_URL", urls(&servers)));
    assert_eq!(
        (three.code, &*three.out),
        (Some(0), "inside\n"),
        "{three:?}"
    );
    servers[0].kill();
    let two = run();
    assert_eq!((two.code, &*two.out), (Some(0), "inside\n"), "{two:?}");
    servers[1].kill();
    let one = run();
    assert_eq!((one.code, &*one.out), (Some(69), ""), "{one:?}");
}

#[test]
fn passwords_are_not_shown() {
    let (server, directory) = (
        Server::start_with(&["--requirepass", "tell-nobody"]),
        Directory::new(),
    );
    let file = directory.file("password");
    std::fs::write(&file, "tell-nobody\n").unwrap();
    // An address without --url before it.
    for address in ["redis://ann:tell-nobody@h", "redis://:tell-@nobody@h"] {
        let ended = said(&mut lockhound(&server, ["show", "k", address]));
        assert_eq!(ended.code, Some(64), "{ended:?}");
        assert!(ended.err.contains("redis://***@h"), "{ended:?}");
        assert!(!ended.err.contains("nobody"), "{ended:?}");
    }
    let path = file.to_str().unwrap();
    let shown = "tr '\\0' ' ' </proc/$PPID/cmdline; echo; true";
    let shown = ["k", "--", "sh", "-c", shown];
    let of_file = [&["run", "-vv", "--password-file", path], &shown[..]].concat();
    let of_variable = [&["run", "-vv"], &shown[..]].concat();
    let mut in_variable = lockhound(&server, &of_variable);
    in_variable.env("LOCKHOUND_PASSWORD", "tell-nobody");
    let mut in_address = without_server(&of_variable);
    let url = format!("redis://:tell-nobody@127.0.0.1:{}", server.port());
    in_address.env("LOCKHOUND_URL", &url);
    let mut named = lockhound(
        &server,
        [&["run", "--user", "default"], &of_file[2..]].concat(),
    );
    for command in [
        &mut lockhound(&server, &of_file),
        &mut in_variable,
        &mut in_address,
        &mut named,
    ] {
        let ended = said(command);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.out.contains("lockhound run"), "{ended:?}");
        assert!(!format!("{ended:?}").contains("tell-nobody"), "{ended:?}");
    }

    // Nor are those that do not fit.
    std::fs::write(&file, "tell-nobody-else").unwrap();
    let mut twice = lockhound(&server, &of_variable);
    twice
        .env("LOCKHOUND_PASSWORD", "tell-nobody")
        .env("LOCKHOUND_URL", &url);
    for (command, code) in [
        (&mut lockhound(&server, &of_file), 69),
        (
            in_variable.env("LOCKHOUND_PASSWORD", "tell-nobody-else"),
            69,
        ),
        (in_address.env("LOCKHOUND_URL", format!("{url}9999")), 64),
        (&mut twice, 64),
    ] {
        let ended = said(command);
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(!format!("{ended:?}").contains("tell-nobody"), "{ended:?}");
    }
}

#[test]
fn servers_are_reached_by_a_socket_file_and_by_tls() {
    let directory = Directory::new();
    let socket = directory.file("redis.sock");
    let server = Server::start_with(&["--unixsocket", socket.to_str().unwrap()]);
    let url = format!("redis+unix://{}", socket.display());
    let args = ["run", "--url", &url, "k", "--", "echo", "inside"];
    assert_eq!(said(&mut lockhound(&server, args)).out, "inside\n");

    let authority = Authority::new();
    let ca = authority.file();
    let of_client = authority.issue(&HOSTS);
    let server = authority.server_with(&authority.issue(&HOSTS), &["--tls-auth-clients", "yes"]);
    let url = server.tls_url("127.0.0.1");
    let mut command = without_server(["run", "--url", &url]);
    command.args(["--ca-file".as_ref(), ca.as_os_str()]);
    command.args(["--cert".as_ref(), of_client.certificate.as_os_str()]);
    command.args(["--key".as_ref(), of_client.key.as_os_str()]);
    let ended = said(command.args(["k", "--", "echo", "inside"]));
    assert_eq!(&*ended.out, "inside\n", "{ended:?}");
    let mut command = without_server(["run", "--url", &url, "k", "--", "true"]);
    assert_eq!(said(&mut command).code, Some(69));
}
