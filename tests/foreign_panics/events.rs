//! The events of the crate, read from its source.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The place of an event, `src/hold.rs:177`, as its metadata has it at run time.
pub(crate) type Place = String;

/// Returns the place and the message of every `log!(..)` of src/ outside of tests.
pub(crate) fn listed() -> BTreeMap<Place, String> {
    let mut events = BTreeMap::new();
    read(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        "src",
        &mut events,
    );
    events
}

fn read(directory: &Path, prefix: &str, events: &mut BTreeMap<Place, String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{prefix}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            read(&entry.path(), &path, events);
        } else if path.ends_with(".rs") {
            let text = fs::read_to_string(entry.path()).unwrap();
            events.extend(find(&text).map(|(line, message)| (format!("{path}:{line}"), message)));
        }
    }
}

/// Returns the lines and messages of the events of a file, up to its tests, which come last.
fn find(text: &str) -> impl Iterator<Item = (usize, String)> {
    let code = text
        .split("#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or_default();
    let is_comment = |at: usize| {
        code[..at]
            .rsplit('\n')
            .next()
            .is_some_and(|line| line.trim_start().starts_with("//"))
    };
    // No other macro of src/ ends like this one.
    let all = code
        .match_indices("log!(")
        .filter(move |&(at, _)| !is_comment(at));
    all.map(move |(at, name)| {
        (
            1 + code[..at].matches('\n').count(),
            message(&code[at + name.len()..]),
        )
    })
}

/// Returns the last string of a macro's arguments, which begin here, as one line.
fn message(arguments: &str) -> String {
    let (mut last, mut depth, mut chars) = (String::new(), 1, arguments.chars());
    while depth > 0 {
        match chars.next().expect("a macro ends") {
            '(' => depth += 1,
            ')' => depth -= 1,
            '"' => {
                last.clear();
                loop {
                    match chars.next().expect("a string ends") {
                        '"' => break,
                        // A line goes on, or a character is escaped.
                        '\\' => match chars.next() {
                            Some('\n') => chars = chars.as_str().trim_start().chars(),
                            escaped => last.extend(escaped),
                        },
                        character => last.push(character),
                    }
                }
            }
            _ => {}
        }
    }
    last
}

#[test]
fn events_are_found_with_their_lines_and_messages() {
    let event = "log!(warn, %key, n = g(1, \"no\"), \"a (\\\"b\\\") \\\n        c {} d\", x);";
    let comment = "// log!(info, \"a comment\")\n";
    let test = "#[cfg(test)]\nmod tests { fn f() { log!(info, \"a test\"); } }";
    let text = format!("fn f() {{\n    {event}\n}}\n{comment}{test}");
    assert_eq!(
        find(&text).collect::<Vec<_>>(),
        [(2, "a (\"b\") c {} d".to_owned())]
    );
}
