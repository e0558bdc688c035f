//! Checks the layers and house rules of src/: which module may use which, and what is not allowed;
//! and the width of all lines. The checks are functions over text, each tested on small made-up
//! sources that break its rule. They see words, not types. That is enough, since a module names all
//! that it uses in a `use` or a path. A lexer removes comments and strings.
//!
//! The public surface of the crates is also compared with lists of it.

mod surface;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// One row of the table. A module may use the modules to its right in its layer, and all modules of
/// the layers below.
struct Layer {
    name: &'static str,
    modules: &'static [&'static str],
    /// The crates that the layer may name.
    libraries: &'static [&'static str],
}

/// From top to bottom.
const LAYERS: [Layer; 6] = [
    Layer {
        name: "user",
        modules: &[
            "guide",
            "locker",
            "servers",
            "multi",
            "rw",
            "semaphore",
            "election",
            "latch",
            "lock",
            "guard",
            "handle",
        ],
        libraries: &["tokio", "tokio_util", "tracing", "uuid"],
    },
    Layer {
        name: "life",
        modules: &[
            "session", "standing", "watchdog", "lines", "alarm", "hold", "engine", "identity",
        ],
        libraries: &[
            "tokio",
            "tokio_util",
            "futures_util",
            "dashmap",
            "tracing",
            "uuid",
            "fastrand",
        ],
    },
    Layer {
        name: "agree",
        modules: &["quorum", "notify"],
        libraries: &["tokio", "futures_util", "uuid"],
    },
    Layer {
        name: "proto",
        modules: &["op"],
        libraries: &["futures_util"],
    },
    Layer {
        name: "wire",
        modules: &["node", "testing"],
        libraries: &[
            "fred",
            "tokio",
            "tokio_util",
            "futures_util",
            "uuid",
            "url",
            "percent_encoding",
            "socket2",
            "mlua",
        ],
    },
    Layer {
        name: "pure",
        modules: &[
            "rights",
            "line",
            "presence",
            "claim",
            "lease",
            "random",
            "clock",
            "owner",
            "fence",
            "options",
            "label",
            "holder",
            "stats",
            "error",
            "credentials",
            "kind",
            "lua",
            "key",
            "shown",
            "foreign",
            "tasks",
            "sync",
        ],
        libraries: &[
            "uuid",
            "rustix",
            "thiserror",
            "hdrhistogram",
            "metrics",
            "tokio",
            "tokio_util",
            "tracing",
            "fastrand",
            "sha1_smol",
        ],
    },
];

/// The modules of cli/src/, from top to bottom: each may use those behind it.
const CLI: [&str; 24] = [
    "main",
    "generate",
    "run",
    "wait",
    "supervise",
    "child",
    "leash",
    "top",
    "ls",
    "show",
    "watch",
    "force",
    "doctor",
    "signals",
    "raw",
    "terminal",
    "outage",
    "json",
    "look",
    "out",
    "place",
    "log",
    "exit",
    "say",
];

/// The modules of doctor/src/, from top to bottom: each may use those behind it.
const DOCTOR: [&str; 13] = [
    "examine",
    "ask",
    "table",
    "report",
    "verdicts",
    "sentinels",
    "cluster",
    "cases",
    "rights",
    "told",
    "found",
    "promise",
    "shown",
];

/// Modules of one layer that never use each other: what the nodes agree on is independent of what
/// they announce.
const STRANGERS: [&str; 2] = ["quorum", "notify"];

/// Modules whose root is a type of which the files below are parts: all of them may use it, and it
/// them.
const ENTWINED: [&str; 13] = [
    "engine", "foreign", "handle", "hold", "kind", "line", "lines", "node", "notify", "quorum",
    "standing", "stats", "watchdog",
];

/// Names that any module may give to what is private to it.
const COMMON_NAMES: [&str; 4] = ["State", "Inner", "Shared", "Entry"];

/// Lines from `fn` to its closing brace.
const LONGEST_FUNCTION: usize = 100;

/// Characters in a line.
const WIDEST_PROSE: usize = 100;
const WIDEST_CODE: usize = 120;

/// The extensions of files that people write. Others are made by tools: lock files, pictures,
/// patches.
const WRITTEN: [&str; 9] = ["rs", "md", "lua", "toml", "yaml", "java", "go", "py", "c"];

/// Phrases that comments, documents and texts do not use, and the field's word for each.
const PHRASES: [(&str, &str); 18] = [
    ("nobody", "no other client, no caller, no task, .."),
    ("anybody", "any client, another caller, .."),
    ("everybody", "all clients, every caller, .."),
    ("in vain", "without success"),
    ("anew", "again"),
    ("under way", "in flight, in progress"),
    ("has yet to", "has not .. yet"),
    ("have yet to", "have not .. yet"),
    ("goes on", "continues, keeps .."),
    ("go on", "continue, keep .."),
    ("told of", "notified of"),
    ("tells of", "notifies of, reports"),
    ("so many", "this many, too many, the number of"),
    ("looks by itself", "polls"),
    ("each look", "each poll, each refresh"),
    ("in which they came", "in which they arrived"),
    ("answer comes", "the answer arrives"),
    ("message comes", "the message arrives"),
];

/// Macros of unfinished work, and of output that a library must not print.
const BANNED_MACROS: [&str; 7] = [
    "todo",
    "unimplemented",
    "dbg",
    "println",
    "print",
    "eprintln",
    "eprint",
];

#[test]
fn the_source_keeps_its_architecture() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let libraries = dependencies(&fs::read_to_string(root.join("Cargo.toml")).expect("Cargo.toml"));
    let sources = read(&root.join("src"), "");
    let modules: BTreeSet<&str> = sources.iter().filter_map(Source::module).collect();
    let placed: BTreeSet<&str> = LAYERS
        .iter()
        .flat_map(|layer| layer.modules)
        .copied()
        .collect();
    assert_eq!(
        modules, placed,
        "left the modules of src/, right those in the table of this test"
    );
    let known = |library: &&&str| libraries.iter().any(|name| name == **library);
    let unknown = LAYERS
        .iter()
        .flat_map(|layer| layer.libraries)
        .find(|library| !known(library));
    assert_eq!(
        unknown, None,
        "the table names a crate that is not in Cargo.toml"
    );
    let mut complaints: Vec<String> = sources
        .iter()
        .flat_map(|source| check(source, &libraries))
        .collect();
    complaints.extend(circles(&sources));
    complaints.extend(homonyms(&sources));
    assert!(
        complaints.is_empty(),
        "{} complaints:\n{}",
        complaints.len(),
        complaints.join("\n")
    );
}

#[test]
fn the_doctor_and_the_command_line_keep_the_same_rules() {
    for (package, known) in [("doctor", &DOCTOR[..]), ("cli", &CLI)] {
        // A published package does not have them.
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(package)
            .join("src");
        if !directory.exists() {
            continue;
        }
        let sources = read(&directory, "");
        let mut modules: Vec<&str> = sources.iter().filter_map(Source::module).collect();
        modules.sort_by_key(|module| known.iter().position(|it| it == module));
        // One that is a directory has several files.
        modules.dedup();
        assert_eq!(
            modules, known,
            "left the modules of {package}/src/, right those in the table of this test"
        );
        let complaints: Vec<String> = sources
            .iter()
            .flat_map(|source| [style(source), upwards(source, known)].concat())
            .collect();
        assert!(
            complaints.is_empty(),
            "{} complaints about {package}/:\n{}",
            complaints.len(),
            complaints.join("\n")
        );
    }
}

/// Set to 1, writes the lists of the surface instead of comparing them.
const UPDATE: &str = "UPDATE_PUBLIC_API";

/// A change of the surface should be wanted: it is a line of the changelog, and after a release it
/// may need another version.
#[test]
fn the_public_surface_is_the_one_that_is_written_down() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, directory) in [("lockhound", "src"), ("lockhound_doctor", "doctor/src")] {
        // A published package does not have the doctor.
        if !root.join(directory).exists() {
            continue;
        }
        let now = surface::surface(name, &read(&root.join(directory), ""));
        assert!(now.len() > 50, "{now:?}");
        let list = root.join(format!("tests/public_api/{name}.txt"));
        if std::env::var(UPDATE).is_ok_and(|value| value == "1") {
            fs::write(&list, now.join("\n") + "\n").expect("written");
        }
        let known = fs::read_to_string(&list).unwrap_or_default();
        let known: Vec<String> = known.lines().map(str::to_owned).collect();
        let changes = surface::difference(&known, &now);
        assert!(
            changes.is_empty() && known == now,
            "the public surface of {name} has changed:\n{}\nIf this is wanted, write it down with\n\
             {UPDATE}=1 cargo test --test architecture public_surface",
            changes.join("\n")
        );
    }
}

#[test]
fn prose_has_100_columns_and_code_at_most_120() {
    let files = written();
    assert!(files.len() > 100, "{files:?}");
    let wide = |path: &PathBuf| {
        let text = fs::read_to_string(path).expect("UTF-8");
        let extension = path
            .extension()
            .map_or("", |extension| extension.to_str().expect("UTF-8"));
        let wide = wide_lines(extension, &text).into_iter();
        wide.map(|line| format!("{}:{line}", path.display()))
            .collect::<Vec<_>>()
    };
    let complaints: Vec<String> = files.iter().flat_map(wide).collect();
    assert!(
        complaints.is_empty(),
        "{} lines are too wide:\n{}",
        complaints.len(),
        complaints.join("\n")
    );
}

#[test]
fn each_target_of_tests_is_a_directory() {
    for tests in ["tests", "cli/tests"] {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(tests);
        let entries = fs::read_dir(directory).expect("it is there");
        let names = entries.map(|entry| entry.expect("it").file_name());
        let files: Vec<_> = names
            .filter(|name| Path::new(name).extension().is_some_and(|it| it == "rs"))
            .collect();
        assert!(
            files.is_empty(),
            "make them {tests}/NAME/main.rs: {files:?}"
        );
    }
}

/// A longer name says what its module and its assertions say.
#[test]
fn names_of_functions_have_at_most_60_characters() {
    let mut long = Vec::new();
    for path in written() {
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("UTF-8");
        for behind in text.split("fn ").skip(1) {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let name = behind.split(|c| !is_name(c)).next().unwrap_or_default();
            if name.len() > 60 {
                long.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// A test that only child processes run does nothing in all other runs, and so cannot fail.
#[test]
fn child_processes_are_no_tests() {
    let test = ["#[test]", "fn child_process()"].join("\n");
    let is_one = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|text| text.contains(&test));
    let found: Vec<_> = written().into_iter().filter(is_one).collect();
    assert!(found.is_empty(), "make them #[ctor::ctor]: {found:?}");
}

/// Who reads these has little time.
#[test]
fn what_strangers_read_first_is_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, most) in [
        ("README.md", 150),
        ("CONTRIBUTING.md", 40),
        ("CHANGELOG.md", 60),
    ] {
        let text = fs::read_to_string(root.join(name)).expect("it is there");
        let lines = text.lines().count();
        assert!(
            lines <= most,
            "{name} has {lines} lines, and may have {most}"
        );
    }
    let readme = fs::read_to_string(root.join("README.md")).expect("it is there");
    assert!(
        !readme.contains("guide::"),
        "each page of the guide is a link"
    );
}

#[test]
fn prose_uses_the_words_of_the_field() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The texts of tests are for those who work on them.
    let directories = ["src", "lua", "docs", "doctor/src", "cli/src"];
    let is_read = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        let below = |directory: &&str| path.starts_with(root.join(directory));
        match extension {
            Some("md") => path.parent() == Some(root) || directories.iter().any(below),
            Some("rs" | "lua") => directories.iter().any(below),
            _ => false,
        }
    };
    let files: Vec<PathBuf> = written().into_iter().filter(is_read).collect();
    assert!(files.len() > 100, "{files:?}");
    let said = |path: &PathBuf| {
        let text = fs::read_to_string(path).expect("UTF-8");
        let extension = path.extension().and_then(|extension| extension.to_str());
        phrases(extension.expect("it has one"), &text)
            .into_iter()
            .map(|complaint| format!("{}:{complaint}", path.display()))
            .collect::<Vec<_>>()
    };
    let complaints: Vec<String> = files.iter().flat_map(said).collect();
    assert!(
        complaints.is_empty(),
        "{} phrases:\n{}",
        complaints.len(),
        complaints.join("\n")
    );
}

#[test]
fn documents_name_files_that_exist() {
    let files = written();
    let mut missing = Vec::new();
    for path in files
        .iter()
        .filter(|path| path.extension().is_some_and(|e| e == "rs" || e == "md"))
    {
        let text = fs::read_to_string(path).expect("UTF-8");
        let is_there = |name: &str| files.iter().any(|file| file.ends_with(name));
        missing.extend(
            named_files(&text)
                .filter(|name| !is_there(name))
                .map(|name| format!("{}: {name}", path.display())),
        );
    }
    assert!(
        missing.is_empty(),
        "there is no such file:\n{}",
        missing.join("\n")
    );
}

#[test]
fn mutations_are_made_in_files_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Ok(settings) = fs::read_to_string(root.join(".cargo/mutants.toml")) else {
        return;
    };
    let listed = settings
        .split("examine_globs = [")
        .nth(1)
        .and_then(|rest| rest.split(']').next())
        .expect("a list");
    let globs: Vec<&str> = listed.split('"').skip(1).step_by(2).collect();
    assert!(globs.len() > 5, "{globs:?}");
    let is_there = |glob: &&&str| root.join(glob.trim_end_matches("/*.rs")).exists();
    assert_eq!(
        globs.iter().find(|glob| !is_there(glob)),
        None,
        "it is not there"
    );
}

/// Returns the Rust and Lua files that stand in backticks in a text.
fn named_files(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text
        .lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2));
    let is_path = |name: &&str| {
        name.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_./".contains(&byte))
    };
    quoted
        .filter(|name| name.len() > 4 && (name.ends_with(".rs") || name.ends_with(".lua")))
        .filter(is_path)
}

/// Returns all files that people write.
fn written() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<PathBuf> = fs::read_dir(root)
        .expect("a directory")
        .map(|entry| entry.expect("it").path())
        .collect();
    files.retain(|path| path.is_file());
    // A published package does not have all of them.
    for directory in [
        "src", "tests", "lua", "examples", "docs", "bench", "recipes", "doctor", "cli", ".cargo",
    ] {
        files_below(&root.join(directory), &mut files);
    }
    files.retain(|path| match path.extension() {
        Some(extension) => WRITTEN.iter().any(|written| extension == *written),
        None => path.ends_with("dev"),
    });
    files
}

/// Collects all files below a directory except those that were built or fetched; none if there is
/// no such directory.
fn files_below(directory: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        if path.is_file() {
            files.push(path);
        } else if !path.ends_with("target") && !path.ends_with("node_modules") {
            files_below(&path, files);
        }
    }
}

/// Returns the numbers of the lines that are too wide. Tables, addresses, and code in prose count
/// as code.
fn wide_lines(extension: &str, text: &str) -> Vec<usize> {
    let mark = match extension {
        "rs" => "//",
        "lua" => "--",
        "md" => "",
        _ => "#",
    };
    let mut wide = Vec::new();
    let mut fenced = false;
    for (at, line) in text.lines().enumerate() {
        let prose = if mark.is_empty() {
            Some(line)
        } else {
            line.trim_start().strip_prefix(mark)
        };
        let prose = prose.map(|text| text.trim_start_matches(['/', '!']));
        let prose = prose.map(|text| {
            if mark.is_empty() {
                text
            } else {
                text.strip_prefix(' ').unwrap_or(text)
            }
        });
        fenced ^= prose.is_some_and(|text| text.trim_start().starts_with("```"));
        let is_code = |text: &str| {
            let begins = text.trim_start();
            fenced
                || text.starts_with("    ")
                || begins.starts_with('|')
                || begins.starts_with('[')
                || begins.starts_with("> ")
                // There is no place to break it.
                || !begins.trim_start_matches("- ").contains(' ')
        };
        let widest = if prose.is_none_or(is_code) {
            WIDEST_CODE
        } else {
            WIDEST_PROSE
        };
        if line.chars().count() > widest {
            wide.push(at + 1);
        }
    }
    wide
}

/// Returns the lines with one of [`PHRASES`], and what to write instead. A phrase may go across
/// lines.
fn phrases(extension: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for words in prose(extension, text) {
        for (phrase, better) in PHRASES {
            let phrase_words: Vec<&str> = phrase.split(' ').collect();
            let found = words
                .windows(phrase_words.len())
                .filter(|window| window.iter().map(|(_, word)| word).eq(&phrase_words));
            complaints.extend(
                found.map(|window| format!("{}: \"{phrase}\": write {better}", window[0].0)),
            );
        }
    }
    complaints
}

/// Returns the words of the comments of a file, in lower case and with their lines, and those of
/// each of its texts. A document is one text.
fn prose(extension: &str, text: &str) -> Vec<Vec<(usize, String)>> {
    let mut comments = Vec::new();
    let mut texts = Vec::new();
    match extension {
        "rs" => {
            let (mut at, mut line) = (0, 1);
            while at < text.len() {
                let (kind, length) = first_token(&text[at..]);
                let piece = &text[at..at + length];
                if piece.starts_with("//") {
                    comments.extend(words(piece, line));
                } else if matches!(kind, Some(Kind::Literal)) && piece.contains('"') {
                    texts.push(words(piece, line));
                }
                at += length;
                line += piece.matches('\n').count();
            }
        }
        "lua" => {
            for (at, line) in text.lines().enumerate() {
                if let Some((_, comment)) = line.split_once("--") {
                    comments.extend(words(comment, at + 1));
                }
            }
        }
        _ => texts.push(words(text, 1)),
    }
    texts.push(comments);
    texts
}

/// Returns the words of a text that begins in this line, without the signs around them.
fn words(text: &str, first_line: usize) -> Vec<(usize, String)> {
    let lines = text.lines().zip(first_line..);
    let pieces = lines.flat_map(|(line, at)| line.split_whitespace().map(move |word| (at, word)));
    pieces
        .map(|(at, word)| (at, word.trim_matches(|c: char| !c.is_alphanumeric())))
        .filter(|(_, word)| !word.is_empty())
        .map(|(at, word)| (at, word.to_lowercase()))
        .collect()
}

#[test]
fn every_warning_and_every_error_has_an_entry_in_the_runbook() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/guide/operating.md")).expect("the page");
    let sources = read(&root.join("src"), "");
    let mut missing: Vec<String> = sources
        .iter()
        .flat_map(|source| unexplained(source, &page))
        .collect();
    let errors = sources
        .iter()
        .find(|source| source.path == "error.rs")
        .expect("the errors");
    for name in ["Error", "Loss", "ServerErrorKind"] {
        let variants = variants(&errors.tokens, name);
        assert!(variants.len() > 4, "{name}: {variants:?}");
        let named = variants.iter().map(|variant| format!("{name}::{variant}"));
        missing.extend(named.filter(|variant| !page.contains(&format!("`{variant}`"))));
    }
    assert!(
        missing.is_empty(),
        "docs/guide/operating.md has no entry for\n{}",
        missing.join("\n")
    );
}

/// Returns all Rust files below a directory.
fn read(directory: &Path, prefix: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("an entry");
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            sources.extend(read(&entry.path(), &format!("{path}/")));
        } else if path.ends_with(".rs") {
            sources.push(Source::new(
                &path,
                &fs::read_to_string(entry.path()).expect("UTF-8"),
            ));
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

/// Returns the crates that the library depends on, as Rust code names them.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut inside = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end_matches(']');
            inside = header == "dependencies" || header.ends_with(".dependencies");
            names.extend(header.strip_prefix("dependencies.").map(str::to_owned));
        } else if inside && !line.starts_with('#') && !line.is_empty() {
            names.extend(line.split(['=', '.', ' ']).next().map(str::to_owned));
        }
    }
    names.iter().map(|name| name.replace('-', "_")).collect()
}

// ---- The rules ----

/// The tokens of a file of src/, without its tests.
struct Source {
    /// The path below src/, as `session/acquire.rs`.
    path: String,
    tokens: Vec<Token>,
    /// The modules that it has for its tests only.
    test_modules: Vec<String>,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        let tokens = lex(text);
        let is_test = |words: &[Token]| {
            ["#", "[", "cfg", "(", "test", ")", "]", "mod"]
                .iter()
                .zip(words)
                .all(|(word, token)| token.is(word))
                && words[9].is(";")
        };
        let test_modules = tokens
            .windows(10)
            .filter(|words| is_test(words))
            .map(|words| words[8].text.clone());
        Self {
            path: path.to_owned(),
            test_modules: test_modules.collect(),
            tokens: without_tests(&tokens),
        }
    }

    fn is_root(&self) -> bool {
        self.path == "lib.rs"
    }

    /// Returns its module path: `[session, acquire]`, and `[session]` for `session/mod.rs`.
    fn place(&self) -> Vec<String> {
        let path = self.path.trim_end_matches(".rs");
        let path = path.strip_suffix("/mod").unwrap_or(path);
        if self.is_root() {
            Vec::new()
        } else {
            path.split('/').map(str::to_owned).collect()
        }
    }

    /// Returns the module of the table that it belongs to.
    fn module(&self) -> Option<&str> {
        let name = self.path.split(['/', '.']).next();
        if self.is_root() { None } else { name }
    }

    /// Returns whether it is, or is below, a module that another of these files has for its tests
    /// only.
    fn is_of_tests(&self, sources: &[Self]) -> bool {
        let place = self.place();
        let is_below = |other: &Self, module: &String| {
            place.starts_with(&[other.place(), vec![module.clone()]].concat())
        };
        sources.iter().any(|other| {
            other
                .test_modules
                .iter()
                .any(|module| is_below(other, module))
        })
    }

    fn complaint(&self, line: usize, what: &str) -> String {
        format!("src/{}:{line}: {what}", self.path)
    }
}

/// Applies all rules to one file.
fn check(source: &Source, libraries: &[String]) -> Vec<String> {
    let mut complaints = style(source);
    if !source.is_root() {
        complaints.extend(imports(source));
        complaints.extend(crates(source, libraries));
    }
    complaints
}

/// Applies the rules that do not depend on the table of the layers.
fn style(source: &Source) -> Vec<String> {
    let mut complaints = opening(source);
    complaints.extend(size(source));
    complaints.extend(manners(source));
    complaints.extend(containment(source));
    complaints.extend(names(source));
    complaints.extend(cancel_safety(source));
    complaints.extend(third_person(source));
    if source.is_root() {
        complaints.extend(no_logic(source));
    }
    complaints
}

/// A module of a crate without layers uses only those behind it in this list.
fn upwards(source: &Source, modules: &[&str]) -> Vec<String> {
    let Some(from) = source.module() else {
        return Vec::new();
    };
    let place_of = |module: &str| modules.iter().position(|known| *known == module);
    let is_upwards = |target: &str| target != from && place_of(target) <= place_of(from);
    let place = source.place();
    let used = references(&source.tokens)
        .into_iter()
        .filter_map(|(line, path)| Some((line, absolute(&path, &place)?)));
    let mut complaints: Vec<_> = used
        .filter(|(_, path)| path.first().is_some_and(|target| is_upwards(target)))
        .map(|(line, path)| source.complaint(line, &format!("`{from}` must not use `{}`", path[0])))
        .collect();
    complaints.dedup();
    complaints
}

/// Modules import downwards only.
fn imports(source: &Source) -> Vec<String> {
    let Some(from) = source.module() else {
        return Vec::new();
    };
    let place = source.place();
    let mut complaints = Vec::new();
    for (line, path) in references(&source.tokens) {
        let Some(path_from_root) = absolute(&path, &place) else {
            continue;
        };
        let target = path_from_root.first().map_or("", String::as_str);
        if layer(target).is_none() {
            let path = path.join("::");
            complaints.push(source.complaint(
                line,
                &format!("`{path}` passes by the modules: name the one it is in"),
            ));
        } else if !may_use(from, target) {
            complaints.push(source.complaint(line, &format!("`{from}` must not use `{target}`")));
        }
    }
    // A `use` with braces may name several items of one module.
    complaints.dedup();
    complaints
}

/// The files of a module are ordered too: no file is used, directly or indirectly, by a file that
/// it uses. Files below a file are a part of it, and tests may use each other.
fn circles(sources: &[Source]) -> Vec<String> {
    let sources: Vec<&Source> = sources
        .iter()
        .filter(|source| !source.is_of_tests(sources))
        .collect();
    let uses: Vec<Vec<usize>> = sources
        .iter()
        .map(|source| uses(source, &sources))
        .collect();
    let reached = |from: usize| {
        let (mut reached, mut open) = (BTreeSet::new(), uses[from].clone());
        while let Some(next) = open.pop() {
            if reached.insert(next) {
                open.extend(&uses[next]);
            }
        }
        reached
    };
    let reached: Vec<BTreeSet<usize>> = (0..sources.len()).map(reached).collect();
    let in_circles = (0..sources.len()).filter(|&at| reached[at].contains(&at));
    let complain = |at: usize| {
        let circle = reached[at]
            .iter()
            .filter(|&&other| reached[other].contains(&at));
        let circle: Vec<&str> = circle.map(|&other| sources[other].path.as_str()).collect();
        sources[at].complaint(1, &format!("it is in a circle: {}", circle.join(", ")))
    };
    in_circles.map(complain).collect()
}

/// Returns the other files of the module that it names, or that have a method which it calls of a
/// shared type.
fn uses(source: &Source, sources: &[&Source]) -> Vec<usize> {
    let place = source.place();
    let paths = |source: &Source| -> Vec<Vec<String>> {
        let place = source.place();
        references(&source.tokens)
            .iter()
            .filter_map(|(_, path)| absolute(path, &place))
            .collect()
    };
    // An item that the module's root re-exports belongs to its file, whatever path names it.
    let roots = sources
        .iter()
        .filter(|other| other.place().len() == 1 && other.module() == source.module());
    let given: Vec<_> = roots
        .flat_map(|root| paths(root))
        .filter(|path| path.len() > 2)
        .collect();
    let through = |path: Vec<String>| match given
        .iter()
        .find(|given| path.len() > 1 && given.last() == path.get(1))
    {
        Some(given) if place.first() == path.first() => given.clone(),
        _ => path,
    };
    let paths: Vec<_> = paths(source).into_iter().map(through).collect();
    let calls = method_calls(&source.tokens);
    let is_entwined = source
        .module()
        .is_some_and(|module| ENTWINED.contains(&module));
    let beside = |other: &Source| {
        let there = other.place();
        let is_root = place.len() == 1 || there.len() == 1;
        let is_below = place.starts_with(&there) || there.starts_with(&place);
        other.module() == source.module()
            && place != there
            && if is_root { !is_entwined } else { !is_below }
    };
    let is_file = |name: &String| {
        sources.iter().any(
            |other| matches!(&other.place()[..], [root, file] if *root == place[0] && file == name),
        )
    };
    let names = |other: &Source| match &other.place()[..] {
        // What the root defines, and does not get from a file below it.
        [root] => paths
            .iter()
            .any(|path| matches!(&path[..], [of, item, ..] if of == root && !is_file(item))),
        there => paths.iter().any(|path| path.starts_with(there)),
    };
    let calls = |other: &Source| {
        shared_methods(&other.tokens)
            .iter()
            .any(|method| calls.contains(method))
    };
    let used = |(at, &other): (usize, &&Source)| {
        (beside(other) && (names(other) || calls(other))).then_some(at)
    };
    sources.iter().enumerate().filter_map(used).collect()
}

/// Returns the methods that a file calls on `self`, or on a variable named like a type of the
/// module: `self.enter()`, `session.enter()`.
fn method_calls(tokens: &[Token]) -> BTreeSet<&str> {
    let calls = tokens
        .windows(4)
        .filter(|call| call[1].is(".") && call[3].is("("));
    calls
        .filter(|call| call[0].is("self") || call[0].is("session"))
        .map(|call| call[2].text.as_str())
        .collect()
}

/// Returns the methods that a file adds to a type of another file.
fn shared_methods(tokens: &[Token]) -> BTreeSet<&str> {
    let mut methods = BTreeSet::new();
    let own = |name: &str| {
        tokens
            .windows(2)
            .any(|pair| (pair[0].is("struct") || pair[0].is("enum")) && pair[1].text == name)
    };
    for at in (0..tokens.len().saturating_sub(2))
        .filter(|&at| tokens[at].is("impl") && tokens[at + 2].is("{"))
    {
        if !own(&tokens[at + 1].text) {
            let body = &tokens[at + 2..closing(tokens, at + 2)];
            methods.extend(
                pairs(body)
                    .filter(|(word, _)| word.is("fn"))
                    .map(|(_, name)| name.text.as_str()),
            );
        }
    }
    methods
}

/// A type's name has one meaning in the whole crate: no two files, or places in one, define it.
fn homonyms(sources: &[Source]) -> Vec<String> {
    let mut definitions: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_of_tests(sources)) {
        for (name, line) in
            type_names(&source.tokens).filter(|(name, _)| !COMMON_NAMES.contains(name))
        {
            definitions
                .entry(name)
                .or_default()
                .push(format!("src/{}:{line}", source.path));
        }
    }
    let several = definitions.iter().filter(|(_, places)| places.len() > 1);
    several
        .map(|(name, places)| {
            format!(
                "`{name}` is defined {} times: {}",
                places.len(),
                places.join(", ")
            )
        })
        .collect()
}

/// Returns the types and aliases that a file defines, each with its line. A type of a trait or of
/// its implementation is named through the trait, and does not count.
fn type_names(tokens: &[Token]) -> impl Iterator<Item = (&str, usize)> {
    let mut depth = 0_usize;
    let outside = tokens.iter().map(move |token| {
        let is_outside = depth == 0;
        depth += usize::from(OPENING.iter().any(|sign| token.is(sign)));
        depth = depth.saturating_sub(usize::from(CLOSING.iter().any(|sign| token.is(sign))));
        is_outside
    });
    let defines = |(word, is_outside): (&Token, bool)| {
        ["struct", "enum", "trait"].iter().any(|kind| word.is(kind))
            || is_outside && word.is("type")
    };
    tokens
        .iter()
        .zip(outside)
        .zip(tokens.iter().skip(1))
        .filter_map(move |(word, name)| {
            (defines(word) && name.kind == Kind::Word).then_some((name.text.as_str(), name.line))
        })
}

/// Each layer names only the crates that the table gives it.
fn crates(source: &Source, libraries: &[String]) -> Vec<String> {
    let Some(layer) = source
        .module()
        .and_then(layer)
        .map(|(layer, _)| &LAYERS[layer])
    else {
        return Vec::new();
    };
    let used = references(&source.tokens)
        .into_iter()
        .map(|(line, path)| (line, path[0].clone()));
    // A crate's name before `::` is the crate everywhere, also in macros; no module has the name of
    // a crate.
    let named = pairs(&source.tokens)
        .filter(|(_, next)| next.is("::"))
        .map(|(name, _)| (name.line, name.text.clone()));
    let mut found: Vec<(usize, String)> = used.chain(named).collect();
    found.retain(|(_, name)| libraries.contains(name) && !layer.libraries.contains(&name.as_str()));
    found.sort();
    found.dedup();
    let what = |name: &str| format!("the layer `{}` must not use the crate {name}", layer.name);
    found
        .iter()
        .map(|(line, name)| source.complaint(*line, &what(name)))
        .collect()
}

/// A file opens with documentation of what it is.
fn opening(source: &Source) -> Vec<String> {
    let first: Vec<&str> = source
        .tokens
        .iter()
        .take(6)
        .map(|token| token.text.as_str())
        .collect();
    let opens = if source.is_root() {
        first == ["#", "!", "[", "doc", "=", "include_str"]
    } else {
        source
            .tokens
            .first()
            .is_some_and(|token| token.kind == Kind::FileDoc)
    };
    let wanted = if source.is_root() {
        "the README, as its documentation"
    } else {
        "`//!` and what it is"
    };
    if opens {
        Vec::new()
    } else {
        vec![source.complaint(1, &format!("it has to open with {wanted}"))]
    }
}

/// Functions are short enough to be taken in at a glance.
fn size(source: &Source) -> Vec<String> {
    let mut complaints = Vec::new();
    for (at, function) in source
        .tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| token.is("fn"))
    {
        let name = &source.tokens.get(at + 1).map_or("", |token| &token.text);
        let last = item_end(&source.tokens, at) - 1;
        let lines = source.tokens[last].last_line - function.line + 1;
        // `fn(` is a type.
        if *name != "(" && lines > LONGEST_FUNCTION {
            let what = format!("`{name}` has {lines} lines; {LONGEST_FUNCTION} are the most");
            complaints.push(source.complaint(function.line, &what));
        }
    }
    complaints
}

/// Calls and macros that are not allowed outside of tests.
fn manners(source: &Source) -> Vec<String> {
    let mut complaints = Vec::new();
    for (token, next) in pairs(&source.tokens) {
        let what = if token.is("unwrap") {
            "unwrap() gives no reason: handle the error, or `expect` with the reason why it cannot happen"
        } else if next.is("!") && BANNED_MACROS.contains(&token.text.as_str()) {
            "a library neither prints nor ships unfinished work"
        } else if next.is("!")
            && token.is("include_str")
            && !source.is_root()
            && !matches!(
                source.module(),
                Some("lua" | "kind" | "guide" | "testing" | "ask")
            )
        {
            "only `lua`, `kind`, `guide` and `testing` include files, and `ask` of the doctor"
        } else {
            continue;
        };
        complaints.push(source.complaint(token.line, &format!("`{}`: {what}", token.text)));
    }
    complaints
}

/// A subscriber is foreign code: its panic is contained at every event, by `log!`, and at every
/// span.
fn containment(source: &Source) -> Vec<String> {
    let tokens = &source.tokens;
    let mut complaints = Vec::new();
    for (at, token) in tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| token.is("tracing"))
    {
        let text = |offset: usize| {
            tokens
                .get(at + offset)
                .map_or("", |token| token.text.as_str())
        };
        if text(1) != "::" || text(3) != "!" {
            continue;
        }
        let mut before = tokens[..at]
            .iter()
            .rev()
            .map(|token| token.text.as_str())
            .skip_while(|text| *text == "{");
        let complaint = match text(2) {
            name if !name.ends_with("span") => {
                format!("`tracing::{name}!(..)` has to be `log!({name}, ..)`")
            }
            _ if ["|", "|", "(", "span"]
                .iter()
                .all(|wanted| before.next() == Some(wanted)) =>
            {
                continue;
            }
            name => format!("`{name}!` has to stand in `span(|| ..)`"),
        };
        complaints.push(source.complaint(token.line, &complaint));
    }
    complaints
}

/// Returns the events of a file, `log!(level, fields, "message")`, each from its level on.
fn events(tokens: &[Token]) -> impl Iterator<Item = &[Token]> {
    let begins =
        |at: usize| tokens[at].is("log") && tokens[at + 1].is("!") && tokens[at + 2].is("(");
    let begins = (0..tokens.len().saturating_sub(2)).filter(move |&at| begins(at));
    begins.map(|at| &tokens[at + 3..closing(tokens, at + 2)])
}

/// Returns the warnings and errors in the log that a page does not have word for word. Of a text
/// with values only the longest piece between two values is compared.
fn unexplained(source: &Source, page: &str) -> Vec<String> {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let page = words(page);
    let mut complaints = Vec::new();
    for event in events(&source.tokens).filter(|event| event[0].is("warn") || event[0].is("error"))
    {
        let mut texts = event
            .iter()
            .filter(|token| token.kind == Kind::Literal && token.text.starts_with('"'));
        let text = texts
            .next_back()
            .map_or("", |token| token.text.trim_matches('"'))
            .replace("\\\n", "");
        let pieces = text
            .split('{')
            .map(|piece| words(piece.split_once('}').map_or(piece, |(_, rest)| rest)));
        let piece = pieces.max_by_key(String::len).unwrap_or_default();
        if piece.is_empty() || !page.contains(&piece) {
            complaints.push(source.complaint(event[0].line, &format!("`{piece}`")));
        }
    }
    complaints
}

/// Returns the names of an enum's variants.
fn variants<'a>(tokens: &'a [Token], name: &str) -> Vec<&'a str> {
    let at = tokens
        .windows(3)
        .position(|words| words[0].is("enum") && words[1].is(name) && words[2].is("{"));
    let at = at.expect("there is such an enum") + 2;
    let (mut depth, mut names, mut before) = (0, Vec::new(), &tokens[at]);
    for token in tokens[at..closing(tokens, at)]
        .iter()
        .filter(|token| !token.is_doc())
    {
        if depth == 1
            && token.kind == Kind::Word
            && ["{", ",", "]"].iter().any(|sign| before.is(sign))
        {
            names.push(token.text.as_str());
        }
        depth += i32::from(["{", "(", "["].iter().any(|sign| token.is(sign)));
        depth -= i32::from(["}", ")", "]"].iter().any(|sign| token.is(sign)));
        before = token;
    }
    names
}

/// The name of a lock must not forge lines of the log: events and spans show it escaped.
fn names(source: &Source) -> Vec<String> {
    let spans = source
        .tokens
        .windows(4)
        .enumerate()
        .filter(|(_, span)| span[0].is("tracing") && span[3].is("!"));
    let spans = spans.map(|(at, _)| &source.tokens[at + 4..closing(&source.tokens, at + 4)]);
    let mut complaints = Vec::new();
    for event in events(&source.tokens).chain(spans) {
        for (sign, token) in event.iter().enumerate().filter(|(_, token)| token.is("%")) {
            let path = event[sign + 1..]
                .iter()
                .take_while(|token| token.kind == Kind::Word || token.is("."));
            if path
                .last()
                .is_some_and(|last| last.is("key") || last.is("keys"))
            {
                complaints.push(source.complaint(
                    token.line,
                    "a name is not shown as it is: `key = %key.shown()`",
                ));
            }
        }
    }
    complaints
}

/// The documentation of every public async function says what dropping its future does.
fn cancel_safety(source: &Source) -> Vec<String> {
    let tokens = &source.tokens;
    let mut complaints = Vec::new();
    for (at, function) in public_functions(tokens) {
        let signature = tokens[function..item_end(tokens, function)]
            .iter()
            .take_while(|token| !token.is("{"));
        let signature: Vec<&str> = signature.map(|token| token.text.as_str()).collect();
        let is_async = tokens[at..function].iter().any(|token| token.is("async"));
        // A function that returns a future.
        let arrow = signature
            .windows(2)
            .position(|words| words == ["->", "impl"])
            .unwrap_or(signature.len());
        let is_async = is_async
            || signature[arrow..]
                .iter()
                .take_while(|word| **word != "<")
                .any(|word| *word == "Future");
        if is_async && !docs_before(tokens, at).contains(&"# Cancel safety") {
            let what = format!("`{}` has no section `# Cancel safety`", signature[1]);
            complaints.push(source.complaint(tokens[at].line, &what));
        }
    }
    complaints
}

/// The first word of a public function's documentation says what it does: `Returns ..`, `Takes ..`.
fn third_person(source: &Source) -> Vec<String> {
    let mut complaints = Vec::new();
    for (at, function) in public_functions(&source.tokens) {
        let docs = docs_before(&source.tokens, at);
        let verb = docs.last().and_then(|line| line.split_whitespace().next());
        if verb.is_some_and(|verb| !verb.trim_end_matches([',', '.']).ends_with('s')) {
            let name = source
                .tokens
                .get(function + 1)
                .map_or("", |token| &token.text);
            let what = format!(
                "the documentation of `{name}` has to begin with a verb in the third person"
            );
            complaints.push(source.complaint(source.tokens[at].line, &what));
        }
    }
    complaints
}

/// Returns where the functions of the public API begin, and where the word `fn` of each is.
fn public_functions(tokens: &[Token]) -> impl Iterator<Item = (usize, usize)> {
    let starts = (0..tokens.len()).filter(|&at| tokens[at].is("pub"));
    let functions = starts.map(|at| {
        let qualifiers = tokens[at + 1..]
            .iter()
            .take_while(|t| t.is("const") || t.is("async") || t.is("unsafe"));
        (at, at + 1 + qualifiers.count())
    });
    functions.filter(|(_, function)| tokens.get(*function).is_some_and(|token| token.is("fn")))
}

/// lib.rs holds no logic: attributes, `mod x;` and `use`, and nothing else.
fn no_logic(source: &Source) -> Vec<String> {
    let tokens: Vec<Token> = source
        .tokens
        .iter()
        .filter(|token| !token.is_doc())
        .cloned()
        .collect();
    let mut complaints = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at].is("#") {
            let open = at
                + if tokens.get(at + 1).is_some_and(|token| token.is("!")) {
                    2
                } else {
                    1
                };
            at = closing(&tokens, open) + 1;
            continue;
        }
        let end = item_end(&tokens, at);
        let mut words = at;
        if tokens[words].is("pub") {
            words += 1;
            if tokens.get(words).is_some_and(|token| token.is("(")) {
                words = closing(&tokens, words) + 1;
            }
        }
        let kind = tokens.get(words).map_or("", |token| &token.text);
        // A module with a body ends with a brace.
        if !(kind == "use" || kind == "mod") || !tokens[end - 1].is(";") {
            complaints.push(source.complaint(
                tokens[at].line,
                "lib.rs holds only attributes, `mod x;` and `use`",
            ));
        }
        at = end;
    }
    complaints
}

fn layer(module: &str) -> Option<(usize, usize)> {
    LAYERS.iter().enumerate().find_map(|(at, layer)| {
        let place = layer.modules.iter().position(|name| *name == module)?;
        Some((at, place))
    })
}

fn may_use(from: &str, target: &str) -> bool {
    let strangers = STRANGERS.contains(&from) && STRANGERS.contains(&target);
    // Tuples compare in the order of the table: from top to bottom, then from left to right.
    from == target || (layer(from) < layer(target) && !strangers)
}

// ---- Paths ----

/// Returns all paths that start in the crate, and all that a `use` names, with their lines.
fn references(tokens: &[Token]) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let next = tokens.get(at + 1);
        if is_use(tokens, at) {
            at = use_tree(tokens, at + 1, &[], &mut found);
        } else if tokens[at].is("extern") && next.is_some_and(|next| next.is("crate")) {
            at = use_tree(tokens, at + 2, &[], &mut found);
        } else if ["crate", "self", "super"].contains(&tokens[at].text.as_str())
            && next.is_some_and(|n| n.is("::"))
        {
            let line = tokens[at].line;
            let mut path = vec![tokens[at].text.clone()];
            while tokens.get(at + 1).is_some_and(|token| token.is("::"))
                && let Some(word) = tokens.get(at + 2).filter(|token| token.kind == Kind::Word)
            {
                path.push(word.text.clone());
                at += 2;
            }
            found.push((line, path));
        }
        at += 1;
    }
    found
}

/// Returns whether a `use` starts here; `use<'a>` is a part of a type.
fn is_use(tokens: &[Token], at: usize) -> bool {
    tokens[at].is("use") && tokens.get(at + 1).is_some_and(|next| !next.is("<"))
}

/// Reads a `use` from after the word, or one branch of its braces, and returns where it stopped: at
/// `;`, `,` or `}`.
fn use_tree(
    tokens: &[Token],
    mut at: usize,
    prefix: &[String],
    found: &mut Vec<(usize, Vec<String>)>,
) -> usize {
    let mut path = prefix.to_vec();
    let mut branched = false;
    let start = at;
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            ";" | "," | "}" => break,
            "{" => {
                branched = true;
                while !tokens.get(at).is_none_or(|token| token.is("}")) {
                    at = use_tree(tokens, at + 1, &path, found);
                }
            }
            // The new name does not matter.
            "as" => at += 1,
            _ if token.kind == Kind::Word || token.is("*") => path.push(token.text.clone()),
            _ => {}
        }
        at += 1;
    }
    if !branched && path.len() > prefix.len() {
        found.push((tokens[start].line, path));
    }
    at
}

/// Resolves a path from the crate's root; `None` if it starts at a library or in scope.
fn absolute(path: &[String], place: &[String]) -> Option<Vec<String>> {
    let ups = path.iter().take_while(|word| *word == "super").count();
    let (base, rest) = match path.first()?.as_str() {
        "crate" => (0, 1),
        "self" => (place.len(), 1),
        "super" => (place.len().saturating_sub(ups), ups),
        _ => return None,
    };
    Some(place[..base].iter().chain(&path[rest..]).cloned().collect())
}

// ---- Text ----

const OPENING: [&str; 3] = ["{", "(", "["];
const CLOSING: [&str; 3] = ["}", ")", "]"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Word,
    Sign,
    Literal,
    /// `///`
    Doc,
    /// `//!`
    FileDoc,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    kind: Kind,
    text: String,
    line: usize,
    last_line: usize,
}

impl Token {
    fn is(&self, text: &str) -> bool {
        self.text == text && matches!(self.kind, Kind::Word | Kind::Sign)
    }

    fn is_doc(&self) -> bool {
        matches!(self.kind, Kind::Doc | Kind::FileDoc)
    }
}

/// Splits a file into tokens. Comments other than documentation are left out.
fn lex(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < text.len() {
        let (kind, length) = first_token(&text[at..]);
        let piece = &text[at..at + length];
        let last_line = line + piece.matches('\n').count();
        if let Some(kind) = kind {
            tokens.push(Token {
                kind,
                text: piece.to_owned(),
                line,
                last_line,
            });
        }
        (at, line) = (at + length, last_line);
    }
    tokens
}

/// Returns the kind of the first token and its length; the kind is `None` for text that is no
/// token.
fn first_token(text: &str) -> (Option<Kind>, usize) {
    let run = |wanted: fn(char) -> bool| text.find(|c| !wanted(c)).unwrap_or(text.len());
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    if text.starts_with("//") {
        let doc = match text.as_bytes().get(2..4) {
            Some([b'!', _]) => Some(Kind::FileDoc),
            // Four slashes are an ordinary comment.
            Some([b'/', next]) if *next != b'/' => Some(Kind::Doc),
            _ => None,
        };
        return (doc, text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return (None, block_comment(text));
    }
    if let Some(length) = raw_string(text)
        .or_else(|| string(text))
        .or_else(|| character(text))
    {
        return (Some(Kind::Literal), length);
    }
    match text.chars().next() {
        Some(c) if c.is_whitespace() => (None, run(char::is_whitespace)),
        Some(c) if c.is_ascii_digit() => (Some(Kind::Literal), run(is_word)),
        Some(c) if is_word(c) => (Some(Kind::Word), run(is_word)),
        _ if ["::", "->", "=>"].iter().any(|sign| text.starts_with(sign)) => (Some(Kind::Sign), 2),
        Some(c) => (Some(Kind::Sign), c.len_utf8()),
        None => (None, 0),
    }
}

/// Returns the length of a block comment. Block comments nest.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

fn raw_string(text: &str) -> Option<usize> {
    let rest = ["br", "cr", "r"]
        .iter()
        .find_map(|prefix| text.strip_prefix(prefix))?;
    let body = rest.trim_start_matches('#');
    let end = format!("\"{}", &rest[..rest.len() - body.len()]);
    let inside = body.strip_prefix('"')?;
    Some(
        inside
            .find(&end)
            .map_or(text.len(), |at| text.len() - inside.len() + at + end.len()),
    )
}

fn string(text: &str) -> Option<usize> {
    let body = text.strip_prefix(['b', 'c']).unwrap_or(text);
    body.starts_with('"')
        .then(|| text.len() - body.len() + quoted(body))
}

/// Returns the length of a character literal, `'a'`; `None` for a lifetime, `'a`.
fn character(text: &str) -> Option<usize> {
    let body = text.strip_prefix('b').unwrap_or(text);
    let mut inside = body.strip_prefix('\'')?.chars();
    let closes = match inside.next()? {
        '\\' => true,
        _ => inside.next() == Some('\''),
    };
    closes.then(|| text.len() - body.len() + quoted(body))
}

/// Returns the length of text that starts with a quote and ends with the same one.
fn quoted(text: &str) -> usize {
    let mut chars = text.char_indices();
    let quote = chars.next().map(|(_, quote)| quote);
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if Some(c) == quote {
            return at + 1;
        }
    }
    text.len()
}

/// Leaves out items that are only for tests.
fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let mark = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens.len() - at >= mark.len()
            && tokens[at..]
                .iter()
                .zip(mark)
                .all(|(token, text)| token.is(text))
        {
            at = item_end(tokens, at);
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// Returns where the item that starts here ends: after its `;` or its braces, or with the enclosing
/// item.
fn item_end(tokens: &[Token], start: usize) -> usize {
    let mut at = start;
    let mut import = false;
    while let Some(token) = tokens
        .get(at)
        .filter(|token| !CLOSING.iter().any(|sign| token.is(sign)))
    {
        import |= is_use(tokens, at);
        if token.is(";") {
            return at + 1;
        }
        if token.is("{") && !import {
            return closing(tokens, at) + 1;
        }
        at = if OPENING.iter().any(|sign| token.is(sign)) {
            closing(tokens, at) + 1
        } else {
            at + 1
        };
    }
    at
}

/// Returns where the bracket that opens here is closed.
fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        if OPENING.iter().any(|sign| token.is(sign)) {
            depth += 1;
        } else if CLOSING.iter().any(|sign| token.is(sign)) {
            depth = depth.saturating_sub(1);
            if depth == 0 {
                return at;
            }
        }
    }
    tokens.len() - 1
}

/// Returns the lines of documentation above an item, and skips attributes between them.
fn docs_before(tokens: &[Token], item: usize) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut at = item;
    while let Some(before) = at.checked_sub(1) {
        at = match &tokens[before] {
            token if token.kind == Kind::Doc => {
                lines.push(token.text.trim_start_matches('/').trim());
                before
            }
            token if token.is("]") => {
                let open = (0..before)
                    .rev()
                    .find(|&open| tokens[open].is("[") && closing(tokens, open) == before);
                open.map_or(0, |open| open.saturating_sub(1))
            }
            _ => break,
        };
    }
    lines
}

fn pairs(tokens: &[Token]) -> impl Iterator<Item = (&Token, &Token)> {
    tokens
        .windows(2)
        .map(|pair| (&pair[0], &pair[1]))
        .filter(|(token, _)| token.kind == Kind::Word)
}

// ---- The checker, checked ----

/// Returns the surface of a made-up crate.
fn surface_of(lib: &str, inner: &str) -> Vec<String> {
    let sources = [Source::new("lib.rs", lib), Source::new("inner.rs", inner)];
    surface::surface("made_up", &sources)
}

#[test]
fn the_surface_is_what_users_can_name() {
    let lib = r#"
        mod inner;
        #[cfg(test)]
        mod tests;
        pub mod page {}
        #[cfg(feature = "more")]
        pub use inner::More;
        pub use inner::{Choice, Lock, Provider};
        pub use other::Token;
    "#;
    let inner = r#"
        /// A lock.
        #[derive(Debug, Clone)]
        pub struct Lock { name: String, pub size: u64, pub(crate) inner: Hidden }
        struct Hidden;
        pub struct NotExported;
        impl Lock {
            pub const LONGEST: u64 = 7;
            /// Locks.
            pub async fn lock<K: Into<Key>>(
                &self,
                mut key: K,
                wait: impl FnOnce(&'static str) -> Option<Duration>,
            ) -> Result<Option<&'_ [u8]>, Error>
            where
                K: Send,
            {
                let x = pub_fn();
            }
            #[cfg(feature = "more")]
            pub const fn with(mut self, more: More) -> Self { self }
            pub(crate) fn inside(&self) {}
            fn private(&self) {}
        }
        impl<T: Send> From<T> for Lock { fn from(_: T) -> Self { Self } }
        impl std::ops::Deref for Lock { type Target = str; fn deref(&self) -> &str { "" } }
        impl From<Hidden> for Lock { fn from(_: Hidden) -> Self { Self } }
        impl Hidden { pub fn unseen(&self) {} }
        #[non_exhaustive]
        #[derive(thiserror::Error)]
        pub enum Choice {
            /// One.
            #[error("a, {0}")]
            One(String, u8),
            #[non_exhaustive]
            Two { /// Its name.
                name: Arc<str> },
            Three,
        }
        pub trait Provider: Send + 'static {
            fn needed(&self) -> impl Future<Output = u8> + Send;
            fn given(&self) -> u8 { 1 }
        }
        pub struct More(pub u8, u16);
    "#;
    let lines = [
        "#[non_exhaustive] pub enum made_up::Choice",
        "impl Display for made_up::Choice",
        "impl Error for made_up::Choice",
        "pub made_up::Choice::One(String, u8)",
        "pub made_up::Choice::Three",
        "#[non_exhaustive] pub made_up::Choice::Two { name: Arc<str> }",
        "pub struct made_up::Lock",
        "impl Clone for made_up::Lock",
        "impl Debug for made_up::Lock",
        "impl Deref for made_up::Lock { type Target = str; }",
        "impl<T: Send> From<T> for made_up::Lock",
        "pub const made_up::Lock::LONGEST: u64",
        "pub async fn made_up::Lock::lock<K: Into<Key>>(&self, key: K, wait: impl FnOnce(&'static str) -> \
         Option<Duration>) -> Result<Option<&'_ [u8]>, Error> where K: Send",
        "pub made_up::Lock::size: u64",
        "#[cfg(feature = \"more\")] pub const fn made_up::Lock::with(self, more: More) -> Self",
        "#[cfg(feature = \"more\")] pub struct made_up::More",
        "#[cfg(feature = \"more\")] pub made_up::More::0: u8",
        "pub trait made_up::Provider: Send + 'static",
        "fn made_up::Provider::given(&self) -> u8 { .. }",
        "fn made_up::Provider::needed(&self) -> impl Future<Output = u8> + Send",
        "pub use made_up::Token = other::Token",
        "pub mod made_up::page",
    ];
    assert_eq!(surface_of(lib, inner), lines);
}

#[test]
fn each_change_of_the_surface_is_found() {
    let lib = "mod inner; pub use inner::Lock;";
    let of =
        |members: &str| surface_of(lib, &format!("pub struct Lock; impl Lock {{ {members} }}"));
    let before = of("pub fn name(&self) -> &str { \"\" }");
    let change = |members: &str| surface::difference(&before, &of(members));
    let none: [&str; 0] = [];
    // How it does it is not of the surface, nor are comments.
    assert_eq!(
        change("/// Returns it.\n pub fn name(&self) -> &str { self.inner() } fn inner(&self) {}"),
        none
    );
    let (gone, new) = (
        "- pub fn made_up::Lock::name(&self) -> &str",
        "+ pub fn made_up::Lock::name(&self) -> String",
    );
    assert_eq!(change(""), [gone]);
    assert_eq!(change("pub(crate) fn name(&self) -> &str { \"\" }"), [gone]);
    assert_eq!(change("pub fn name(&self) -> String { x }"), [gone, new]);
    assert_eq!(
        change("pub fn name(&self) -> &str { x } pub fn size(&self) {}"),
        ["+ pub fn made_up::Lock::size(&self)"]
    );
    assert_eq!(
        change("#[deprecated] pub fn name(&self) -> &str { x }"),
        [
            gone,
            "+ #[deprecated] pub fn made_up::Lock::name(&self) -> &str"
        ]
    );
}

/// Returns the complaints about a made-up file that opens as it should, without the path.
fn complaints(path: &str, text: &str) -> Vec<String> {
    let opening = if path == "lib.rs" {
        "#![doc = include_str!(\"../README.md\")]"
    } else {
        "//! A file."
    };
    let libraries = ["tokio", "fred", "uuid", "thiserror"].map(str::to_owned);
    check(
        &Source::new(path, &format!("{opening}\n{text}")),
        &libraries,
    )
}

#[track_caller]
fn assert_fine(path: &str, text: &str) {
    assert_eq!(
        complaints(path, text),
        Vec::<String>::new(),
        "{path}: {text}"
    );
}

#[track_caller]
fn assert_complaint(path: &str, text: &str, about: &str) {
    let found = complaints(path, text);
    assert!(
        found.len() == 1 && found[0].contains(about),
        "{path}: {text}: {found:?}"
    );
}

#[test]
fn imports_go_downwards() {
    assert_fine(
        "lines.rs",
        "use crate::hold::{Hold, Shut}; use crate::{quorum::Quorum, key::Key as Name};",
    );
    assert_fine("lease.rs", "use crate::clock::{self, Instant};");
    assert_fine(
        "lines.rs",
        "use std::{fmt, sync::Arc}; use super::hold::Hold; fn f() { crate::lease::grid(self.x) }",
    );
    assert_fine(
        "session/acquire.rs",
        "use super::{Grip, Session}; use crate::session::outage; use self::inner::X;",
    );
    assert_fine(
        "session/mod.rs",
        "mod acquire; pub(crate) use self::acquire::X; pub(in crate::session) fn f() {}",
    );
    for text in [
        "use crate::session::Session;",
        "pub(crate) use crate::session::Session;",
        "use crate::{clock, session::{Session, Grip}};",
        "use super::session;",
        "fn f() -> u8 { crate::session::f() }",
        "fn f() { let x: Option<&super::session::Session> = None; }",
        "tokio::select! { _ = crate::session::f() => {} }",
        "use crate::session as below;",
        "#[cfg(not(test))] use crate::session::Session;",
    ] {
        assert_complaint("lines.rs", text, "`lines` must not use `session`");
    }
    assert_complaint(
        "session/acquire.rs",
        "use super::super::lock::Lock;",
        "`session` must not use `lock`",
    );
    assert_complaint(
        "clock.rs",
        "use crate::lease;",
        "`clock` must not use `lease`",
    );
    assert_complaint(
        "node/link.rs",
        "use crate::op;",
        "src/node/link.rs:2: `node` must not use `op`",
    );
}

#[test]
fn a_module_without_layers_uses_those_behind_it() {
    let source = |text: &str| Source::new("b.rs", &format!("//! What it is.\n{text}"));
    assert_eq!(
        upwards(
            &source("use crate::c::X;\nuse super::b::Y;\nuse other::Z;"),
            &["a", "b", "c"]
        ),
        [""; 0]
    );
    assert_eq!(
        upwards(&source("use crate::a::X;"), &["a", "b", "c"]).len(),
        1
    );
    assert_eq!(
        upwards(&source("use crate::unknown::X;"), &["a", "b", "c"]).len(),
        1,
        "the root, or no module"
    );
}

#[test]
fn quorum_and_notify_do_not_know_each_other() {
    assert_complaint(
        "quorum.rs",
        "use crate::notify::Channels;",
        "`quorum` must not use `notify`",
    );
    assert_complaint(
        "notify.rs",
        "use crate::quorum::Quorum;",
        "`notify` must not use `quorum`",
    );
    assert_fine("notify.rs", "use crate::op; use crate::notify::inner;");
}

#[test]
fn paths_name_the_module_of_each_item() {
    for text in [
        "use crate::Locker;",
        "use super::*;",
        "use super::super::Locker;",
        "fn f() { crate::f() }",
    ] {
        assert_complaint("lines.rs", text, "passes by the modules");
    }
    assert_complaint(
        "session/raw_guard.rs",
        "use super::super::Locker;",
        "passes by the modules",
    );
}

#[test]
fn files_of_a_module_do_not_use_each_other_in_circles() {
    let in_circles = |files: &[(&str, &str)]| -> Vec<String> {
        let sources: Vec<Source> = files
            .iter()
            .map(|(path, text)| Source::new(path, text))
            .collect();
        circles(&sources)
            .iter()
            .map(|complaint| complaint[4..complaint.find(':').expect("a line")].to_owned())
            .collect()
    };
    let root = (
        "session/mod.rs",
        "mod a; use self::a::A; use self::b::B; use self::state::Session;",
    );
    let state = ("session/state.rs", "struct Session;");
    let a = (
        "session/a.rs",
        "use super::Session; impl Session { fn enter(&self) { self.leave() } }",
    );
    let b = ("session/b.rs", "impl Session { fn leave(&self) {} }");
    assert_eq!(in_circles(&[root, state, a, b]), Vec::<String>::new());
    let type_of_all = ("session/mod.rs", "mod a; use self::a::A; struct Session;");
    assert_eq!(
        in_circles(&[type_of_all, a]),
        ["session/mod.rs", "session/a.rs"]
    );
    let entwined = [
        ("hold.rs", "mod a; use self::a::A; struct Hold;"),
        ("hold/a.rs", "use super::Hold; impl Hold {}"),
    ];
    assert_eq!(in_circles(&entwined), Vec::<String>::new());
    let back = (
        "session/b.rs",
        "impl Session { fn leave(&self) { session.enter(); } }",
    );
    assert_eq!(
        in_circles(&[root, state, a, back]),
        ["session/a.rs", "session/b.rs"]
    );
    let by_name = (
        "session/b.rs",
        "use super::a::A; impl Session { fn leave(&self) {} }",
    );
    assert_eq!(
        in_circles(&[root, state, a, by_name]),
        ["session/a.rs", "session/b.rs"]
    );
    let around = [
        (
            "session/b.rs",
            "use super::c; impl Session { fn leave() {} }",
        ),
        ("session/c.rs", "use super::a;"),
    ];
    assert_eq!(
        in_circles(&[a, around[0], around[1]]),
        ["session/a.rs", "session/b.rs", "session/c.rs"]
    );
    let re_exported = (
        "session/b.rs",
        "use super::A; impl Session { fn leave(&self) {} }",
    );
    assert_eq!(
        in_circles(&[root, state, a, re_exported]),
        ["session/a.rs", "session/b.rs"]
    );
    let own = (
        "session/b.rs",
        "struct Other; impl Other { fn leave(&self) { session.enter(); } }",
    );
    assert_eq!(
        in_circles(&[a, own]),
        Vec::<String>::new(),
        "a type's methods in its own file are its own"
    );
    let below = [
        ("session/a.rs", "mod c; use self::c::C;"),
        ("session/a/c.rs", "use super::X; use super::super::a::Y;"),
    ];
    assert_eq!(in_circles(&below), Vec::<String>::new(), "a part of it");
    let tested = ("session/mod.rs", "#[cfg(test)] mod a; #[cfg(test)] mod b;");
    assert_eq!(
        in_circles(&[tested, a, back]),
        Vec::<String>::new(),
        "only tests"
    );
}

#[test]
fn a_type_name_with_two_meanings_is_found() {
    let complaints = |files: &[(&str, &str)]| {
        homonyms(
            &files
                .iter()
                .map(|(path, text)| Source::new(path, text))
                .collect::<Vec<_>>(),
        )
    };
    let place = (
        "lines.rs",
        "pub(crate) struct Place<'a>(&'a str); trait World { type Place; }",
    );
    for other in [
        "enum Place { A }",
        "trait Place {}",
        "type Place = u8;",
        "fn f() { struct Place; }",
    ] {
        let found = complaints(&[place, ("node/mod.rs", other)]);
        assert_eq!(
            found,
            ["`Place` is defined 2 times: src/lines.rs:1, src/node/mod.rs:1"],
            "{other}"
        );
    }
    let twice = ("lock.rs", "struct Place;\nmod x { struct Place; }");
    assert_eq!(
        complaints(&[twice]),
        ["`Place` is defined 2 times: src/lock.rs:1, src/lock.rs:2"]
    );
    for other in [
        "impl World for X { type Place = u8; }",
        "use crate::lines::Place; enum X { Place(Place) } // struct Place;",
        "#[cfg(test)] mod tests { struct Place; }",
    ] {
        assert_eq!(
            complaints(&[place, ("node/mod.rs", other)]),
            [""; 0],
            "{other}"
        );
    }
    let common = [
        ("lines.rs", "struct State;"),
        ("node/mod.rs", "enum State {}"),
    ];
    assert_eq!(complaints(&common), [""; 0]);
    let tested = [
        place,
        ("node/mod.rs", "#[cfg(test)] mod model;"),
        ("node/model.rs", "struct Place;"),
    ];
    assert_eq!(complaints(&tested), [""; 0]);
}

#[test]
fn comments_strings_and_tests_are_not_read() {
    for text in [
        "// use crate::session;",
        "/// [`x`](crate::session::X), `fred::X`, println!()\nfn f() {}",
        "/* /* use crate::session; */ use crate::session; */",
        "const A: &str = \"\\\"use crate::session;\"; const B: &str = r#\"\"use crate::session;\"#;",
        "const A: [char; 2] = ['\"', '\\'']; // use crate::session; \"",
        "fn f<'a>(x: &'a str) -> &'a str { x } // ' use crate::session;",
        "#[cfg(test)]\nmod tests { use crate::session; fn f() { x.unwrap(); println!(\"{}\", '}'); } }",
        "#[cfg(test)]\n#[allow(unused)]\nuse crate::{session, lock};",
        "#[cfg(test)]\nfn f() -> [u8; 3] { crate::session::f().unwrap() }",
        "struct X { #[cfg(test)] probe: crate::session::X }",
    ] {
        assert_fine("lines.rs", text);
    }
    // What comes after tests counts again.
    let text = "#[cfg(test)] use crate::{session}; #[cfg(test)] mod tests {} use crate::lock;";
    assert_complaint("lines.rs", text, "must not use `lock`");
    let text = "struct X { #[cfg(test)] probe: u8 } use crate::lock;";
    assert_complaint("lines.rs", text, "must not use `lock`");
}

#[test]
fn layers_name_their_own_crates_only() {
    assert_fine(
        "node/link.rs",
        "use fred::clients::Client; fn f() -> fred::error::Error { tokio::spawn(x) }",
    );
    for text in [
        "use fred::clients::Client;",
        "use fred as redis;",
        "use {std::fmt, fred::x};",
        "extern crate fred;",
        "fn f(x: fred::error::Error) {}",
        "fn f() { ::fred::f!() }",
    ] {
        assert_complaint(
            "session/acquire.rs",
            text,
            "the layer `life` must not use the crate fred",
        );
    }
    assert_complaint(
        "op/acquire.rs",
        "use tokio::time::sleep;",
        "the layer `proto` must not use the crate tokio",
    );
    assert_complaint(
        "lines.rs",
        "#[derive(thiserror::Error)] struct E;",
        "must not use the crate thiserror",
    );
    assert_fine("lines.rs", "fn f(fred: u8) -> u8 { fred }");
}

#[test]
fn files_open_with_a_doc_comment() {
    let opening = |path, text| check(&Source::new(path, text), &[]).len();
    assert_eq!(opening("lines.rs", "//! A file.\n"), 0);
    assert_eq!(
        opening("lines.rs", "// Copyright\n//! A file.\nuse std::fmt;"),
        0
    );
    assert_eq!(opening("lines.rs", "use std::fmt;"), 1);
    assert_eq!(opening("lines.rs", "/// An item.\nuse std::fmt;"), 1);
    assert_eq!(opening("lines.rs", ""), 1);
    assert_eq!(
        opening(
            "lib.rs",
            "#![doc = include_str!(\"../README.md\")]\nmod gate;"
        ),
        0
    );
    assert_eq!(opening("lib.rs", "//! A crate.\nmod gate;"), 1);
}

#[test]
fn the_root_holds_no_logic() {
    assert_fine(
        "lib.rs",
        "#![warn(x)]\n/// Docs.\n#[cfg(unix)]\nmod lines;\npub use lines::{A, B};",
    );
    assert_fine("lib.rs", "pub(crate) use fred::X;");
    for text in [
        "fn f() {}",
        "pub struct X;",
        "mod x { fn f() {} }",
        "pub const X: u8 = 1;",
        "foo!();",
        "impl X {}",
    ] {
        assert_complaint("lib.rs", text, "lib.rs holds only");
    }
}

#[test]
fn functions_stay_short() {
    let lines = |n: usize, line: &str| format!("{line}\n").repeat(n);
    let long = |n| {
        format!(
            "fn f(x: [u8; 3]) -> u8\nwhere\n    u8: Copy,\n{{\n{}}}",
            lines(n, "    g();")
        )
    };
    assert_fine("lines.rs", &long(95));
    assert_complaint("lines.rs", &long(96), "`f` has 101 lines");
    assert_complaint(
        "lines.rs",
        &format!("impl X {{ {} }}", long(96)),
        "`f` has 101 lines",
    );
    let types = lines(100, "type F = fn(u8) -> u8;");
    assert_fine("lines.rs", &types);
    assert_fine(
        "lines.rs",
        &format!("#[cfg(test)]\nmod tests {{\n{}}}", long(96)),
    );
}

#[test]
fn width_is_counted_in_characters() {
    let code = format!(
        "{}\n{}\n{}\n",
        "ä".repeat(120),
        "a".repeat(121),
        "a".repeat(120)
    );
    assert_eq!(wide_lines("rs", &code), [2]);
    let prose = format!(
        "/// {}\n/// {}\n// | {}\n",
        "ä ".repeat(48),
        "a ".repeat(48) + "b",
        "a ".repeat(48) + "b"
    );
    assert_eq!(wide_lines("rs", &prose), [2]);
    let page = format!("{0}\n```\n{0}\n```\n    {0}\n", "a ".repeat(50) + "b");
    assert_eq!(wide_lines("md", &page), [1]);
}

#[test]
fn a_phrase_is_found_in_comments_and_texts_and_across_lines() {
    let found = |extension, text| phrases(extension, text).len();
    assert_eq!(found("rs", "/// Nobody waits.\nfn f() {}"), 1);
    assert_eq!(found("rs", "// The call is under\n// way."), 1);
    assert_eq!(found("rs", "log!(warn, \"it goes \\\n    on\");"), 1);
    assert_eq!(found("rs", "fn nobody() -> Nobody { anew() }"), 0);
    assert_eq!(
        found("rs", "// It may go\nfn f() {}\nlet text = \"on\";"),
        0
    );
    assert_eq!(found("lua", "local anew = 1 -- It is told of a loss."), 1);
    assert_eq!(found("md", "It waits in\nvain: `to_nobody`."), 1);
    assert_eq!(
        phrases("md", "a\n\nAnybody may.")[0],
        "3: \"anybody\": write any client, another caller, .."
    );
}

#[test]
fn a_file_that_is_named_is_read_in_backticks() {
    let text = "See `line/mod.rs`, `lua.rs` and `*.rs`, not `x.rs:3` or y.rs.";
    assert_eq!(
        named_files(text).collect::<Vec<_>>(),
        ["line/mod.rs", "lua.rs"]
    );
}

#[test]
fn unfinished_work_and_printing_are_found() {
    assert_fine(
        "lines.rs",
        "fn f() { x.unwrap_or(1); x.expect(\"why\"); writeln!(f, \"x\"); assert!(x); }",
    );
    for banned in [
        "x.unwrap()",
        "x.map(Option::unwrap)",
        "todo!()",
        "unimplemented!()",
        "println!(\"x\")",
        "dbg!(x)",
    ] {
        assert_complaint(
            "lines.rs",
            &format!("fn f() {{\n    {banned};\n}}"),
            "src/lines.rs:3: `",
        );
    }
    assert_complaint(
        "lines.rs",
        "const X: &str = include_str!(\"x\");",
        "only `lua`, `kind`, `guide` and `testing` include files",
    );
    assert_fine("lua.rs", "const X: &str = include_str!(\"x\");");
}

#[test]
fn a_warning_without_an_entry_is_found() {
    let page = "- **`a server is\n  away`**: bring it back. **`an odd number of servers: {}`**";
    let found = |event: &str| {
        unexplained(
            &Source::new("lines.rs", &format!("fn f() {{ {event} }}")),
            page,
        )
        .len()
    };
    for fine in [
        "log!(warn, node = \"a name\", \"a server is away\");",
        "log!(warn, \"a server \\\n    is away\");",
        "log!(error, \"an odd number of servers: {}\", f(1));",
        "log!(debug, \"nobody reads this\");",
    ] {
        assert_eq!(found(fine), 0, "{fine}");
    }
    for alarm in [
        "log!(warn, \"a server is gone\");",
        "log!(error, %node, \"{n} replicas\");",
        "log!(warn, n);",
    ] {
        assert_eq!(found(alarm), 1, "{alarm}");
    }
    let tokens = lex(
        "enum E { /// A.\n #[error(\"x, y\")] A, B(Loss), #[non_exhaustive] C { d: u8, e: u8 } }",
    );
    assert_eq!(variants(&tokens, "E"), ["A", "B", "C"]);
}

#[test]
fn a_subscriber_that_panics_is_contained() {
    assert_fine(
        "lines.rs",
        "use tracing::Span; fn f() { log!(warn, x); foreign::span(|| tracing::debug_span!(x)); }",
    );
    assert_complaint(
        "lines.rs",
        "fn f() { contained(|| tracing::warn!(x)); }",
        "has to be `log!(warn, ..)`",
    );
    assert_complaint(
        "lines.rs",
        "fn f() { contained(|| tracing::info_span!(x)); }",
        "has to stand in `span(|| ..)`",
    );
}

#[test]
fn names_are_escaped_in_the_log() {
    let event = |fields| format!("fn f() {{ log!(warn, {fields}, \"x\"); }}");
    let span = |fields| format!("fn f() {{ span(|| tracing::debug_span!(\"x\", {fields})); }}");
    for fields in [
        "key = %key.shown()",
        "key = %hold.key.shown(), %owner",
        "keys = ?self.keys",
        "%monkey",
    ] {
        assert_fine("lines.rs", &event(fields));
    }
    for fields in [
        "%key",
        "key = %hold.key, %owner",
        "parent: None, x = 1, key = %self.key",
    ] {
        assert_complaint("lines.rs", &event(fields), "key.shown()");
        assert_complaint("lines.rs", &span(fields), "key.shown()");
    }
}

#[test]
fn async_functions_say_what_dropping_does() {
    let safety = "/// Does it.\n///\n/// # Cancel safety\n/// Safe.\n";
    assert_fine(
        "lines.rs",
        &format!("impl X {{ {safety}#[must_use = \"[x\"]\npub async fn f(&self) {{}} }}"),
    );
    assert_fine(
        "lines.rs",
        &format!("{safety}pub fn f() -> impl Future<Output = u8> {{}}"),
    );
    assert_fine(
        "lines.rs",
        "pub(crate) async fn f() {}\nasync fn g() {}\npub fn h() {}\npub struct X;",
    );
    for text in [
        "pub async fn f() {}",
        "/// Does it.\npub async fn f<T: Into<u8>>(x: T) {}",
        "/// Tells of a # Cancel safety of others.\npub const unsafe async fn f() {}",
        "/// # Cancel safety\npub struct X;\n/// Does it.\n#[inline]\npub async fn f() {}",
        "pub fn f() -> impl Future<Output = u8> { async { 1 } }",
        "pub fn f<'a>() -> impl std::future::Future<Output = u8> + use<'a> { async { 1 } }",
    ] {
        assert_complaint("lines.rs", text, "`f` has no section `# Cancel safety`");
    }
}

#[test]
fn documentation_of_functions_begins_with_what_they_do() {
    assert_fine(
        "lines.rs",
        "/// Returns the name.\n///\n/// Not empty.\n#[must_use]\npub const fn f() -> u8 { 1 }",
    );
    assert_fine(
        "lines.rs",
        "/// The name.\npub(crate) fn f() {}\n/// The name.\nfn g() {}\n/// The name.\npub struct X;",
    );
    for text in [
        "/// The name.\npub fn f() {}",
        "/// Whether it is held.\n#[inline]\npub const fn f() {}",
    ] {
        assert_complaint(
            "lines.rs",
            text,
            "of `f` has to begin with a verb in the third person",
        );
    }
}

#[test]
fn dependencies_are_read_from_the_manifest() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\n# why\ntokio-util = \"1\"\nuuid.workspace = true\n\
                    [target.'cfg(unix)'.dependencies]\nrustix = \"1\"\n[dependencies.url]\nversion = \"2\"\n\
                    [dev-dependencies]\nredis = \"1\"\n";
    assert_eq!(
        dependencies(manifest),
        ["tokio_util", "uuid", "rustix", "url"]
    );
}
