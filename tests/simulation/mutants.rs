//! Mistakes in the source that the simulation has to find, each of them a patch in `mutants/`: its
//! first lines say what the mistake is, and its name is that of the file.
//!
//! `./dev mutants simulation` makes one after the other in a copy of the source, and runs seeds
//! until one fails. `./dev mutants simulation no_undo` makes one alone.

use std::path::Path;

/// How a file is changed, in one place.
#[derive(Debug)]
struct Hunk {
    file: String,
    before: String,
    after: String,
}

/// A mistake.
#[derive(Debug)]
struct Mutant {
    name: String,
    what: String,
    hunks: Vec<Hunk>,
}

impl Mutant {
    /// Reads a patch, as `diff -u` and `git diff` write it. Line numbers say nothing here.
    fn parse(name: &str, patch: &str) -> Self {
        let (mut what, mut hunks, mut file) = (String::new(), Vec::<Hunk>::new(), None);
        for line in patch.lines() {
            let (sign, text) = line.split_at_checked(1).unwrap_or((" ", ""));
            match (&file, sign) {
                (None, _) if !line.starts_with("--- ") => what.push_str(line),
                (_, "-") if line.starts_with("--- a/") => {
                    file = Some(line["--- a/".len()..].to_owned());
                }
                (_, "+") if line.starts_with("+++ b/") => {}
                (Some(file), "@") => {
                    hunks.push(Hunk {
                        file: file.clone(),
                        before: String::new(),
                        after: String::new(),
                    });
                }
                (_, sign) => {
                    let Hunk { before, after, .. } =
                        hunks.last_mut().expect("lines stand behind an @@");
                    assert!([" ", "-", "+"].contains(&sign), "{name}: {line}");
                    if sign != "+" {
                        *before += &format!("{text}\n");
                    }
                    if sign != "-" {
                        *after += &format!("{text}\n");
                    }
                }
            }
        }
        Self {
            name: name.to_owned(),
            what,
            hunks,
        }
    }

    /// All of them, in the order of their names.
    fn all() -> Vec<Self> {
        let directory = root().join("tests/simulation/mutants");
        let mut paths: Vec<_> = directory
            .read_dir()
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        paths.sort();
        let read = |path: &std::path::PathBuf| {
            assert!(
                path.extension()
                    .is_some_and(|extension| extension == "patch"),
                "{path:?} is no patch"
            );
            Self::parse(
                &path.file_stem().unwrap().to_string_lossy(),
                &std::fs::read_to_string(path).unwrap(),
            )
        };
        paths.iter().map(read).collect()
    }

    /// Makes the mistake in a source.
    ///
    /// # Errors
    /// What does not stand there, or in several places.
    fn make(&self, source: &Path) -> Result<Vec<(String, String)>, String> {
        let mut files: Vec<(String, String)> = Vec::new();
        for Hunk {
            file,
            before,
            after,
        } in &self.hunks
        {
            if files.last().is_none_or(|(last, _)| last != file) {
                let text = std::fs::read_to_string(source.join(file))
                    .map_err(|error| format!("{file}: {error}"))?;
                files.push((file.clone(), text));
            }
            let (_, text) = files.last_mut().expect("it was read");
            // A line ends where one begins.
            let places = text
                .match_indices(&**before)
                .filter(|&(at, _)| at == 0 || text.as_bytes()[at - 1] == b'\n');
            match places.collect::<Vec<_>>()[..] {
                [(at, _)] => text.replace_range(at..at + before.len(), after),
                ref places => {
                    return Err(format!(
                        "{}: {file} has {} places for\n{before}",
                        self.name,
                        places.len()
                    ));
                }
            }
        }
        Ok(files)
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_mutant_can_be_made_and_says_what_it_is() {
    let mutants = Mutant::all();
    assert!(mutants.len() > 20, "{}", mutants.len());
    let complaints: Vec<String> = mutants
        .iter()
        .filter_map(|mutant| mutant.make(root()).err())
        .collect();
    assert!(
        complaints.is_empty(),
        "tests/simulation/mutants has to follow the source:\n{}",
        complaints.join("\n")
    );
    for Mutant { name, what, hunks } in &mutants {
        assert!(
            what.ends_with('.') && what.len() > 20,
            "{name} says {what:?}"
        );
        assert!(
            !hunks.is_empty() && hunks.iter().all(|hunk| hunk.before != hunk.after),
            "{name}"
        );
    }
}

#[test]
fn a_mutant_that_does_not_follow_the_source_is_found() {
    let patch = |line| {
        format!(
            "Something.\n--- a/Cargo.toml\n+++ b/Cargo.toml\n@@ -1 +1 @@\n-{line}\n+# changed\n"
        )
    };
    let make = |line| Mutant::parse("mutant", &patch(line)).make(root());
    let made = make("[package]").unwrap();
    assert!(
        made[0].0 == "Cargo.toml" && made[0].1.contains("# changed\nname"),
        "{made:?}"
    );
    assert!(make("[packages]").unwrap_err().contains("has 0 places"));
    assert!(make("").unwrap_err().contains("places"), "several");
}

/// What the simulation is built from.
const SOURCE: [&str; 12] = [
    "Cargo.toml",
    "Cargo.lock",
    "README.md",
    "docs",
    "src",
    "lua",
    "tests",
    "examples",
    "doctor",
    "cli",
    "recipes",
    "bench",
];

/// Otherwise no mutant can be built.
#[test]
fn every_crate_of_the_workspace_is_copied_for_a_mutant() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = manifest
        .lines()
        .find_map(|line| line.strip_prefix("members = "))
        .unwrap();
    let members: Vec<&str> = members
        .split('"')
        .skip(1)
        .step_by(2)
        .filter(|member| *member != ".")
        .collect();
    assert!(
        !members.is_empty() && members.iter().all(|member| SOURCE.contains(member)),
        "{members:?}"
    );
}

#[cfg(feature = "soak")]
mod hunt {
    use std::fs;
    use std::io::Read as _;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::{Mutant, SOURCE, root};

    /// How many seeds a mutant may survive, and for how long: a mistake may also make a program
    /// endless.
    const SEEDS: u64 = 20_000;
    const LONGEST: Duration = Duration::from_secs(1_800);

    fn copy(from: &Path, to: &Path) {
        if from.is_dir() {
            fs::create_dir_all(to).unwrap();
            for entry in fs::read_dir(from).unwrap() {
                let name = entry.unwrap().file_name();
                copy(&from.join(&name), &to.join(&name));
            }
        } else {
            fs::copy(from, to).unwrap();
        }
    }

    /// A copy of the source with this mistake in it.
    fn make(mutant: &Mutant) -> PathBuf {
        let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutant");
        let _: Result<_, _> = fs::remove_dir_all(&source);
        fs::create_dir_all(&source).unwrap();
        SOURCE
            .iter()
            .for_each(|name| copy(&root().join(name), &source.join(name)));
        for (file, text) in mutant.make(root()).unwrap() {
            fs::write(source.join(file), text).unwrap();
        }
        source
    }

    fn cargo(source: &Path) -> Command {
        let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
        cargo.current_dir(source).args([
            "test",
            "--quiet",
            "--features",
            "testing",
            "--test",
            "simulation",
        ]);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        // Dependencies are built already, and most of the crate is as in the mutant before.
        cargo.env("CARGO_INCREMENTAL", "1");
        cargo.env(
            "CARGO_TARGET_DIR",
            Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap(),
        );
        cargo.stdin(Stdio::null());
        cargo
    }

    /// The program that runs the simulation.
    fn build(mutant: &Mutant) -> PathBuf {
        let source = make(mutant);
        let built = cargo(&source)
            .args(["--no-run", "--message-format=json"])
            .output()
            .unwrap();
        assert!(
            built.status.success(),
            "{}: {}",
            mutant.name,
            String::from_utf8_lossy(&built.stderr)
        );
        let told = String::from_utf8(built.stdout).unwrap();
        let program = told
            .rsplit("\"executable\":\"")
            .next()
            .and_then(|rest| rest.split('"').next());
        program.expect("cargo names it").into()
    }

    /// The seed that finds a mutant, if one does.
    fn hunt(mutant: &Mutant) -> Option<u64> {
        let mut run = Command::new(build(mutant));
        run.current_dir(root()).args([
            "--exact",
            "nobody_is_inside_beside_another_whatever_the_seed",
            "--nocapture",
        ]);
        run.env("SIMULATION_SEEDS", SEEDS.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let (mut child, began) = (run.spawn().unwrap(), Instant::now());
        let mut told = child.stdout.take().unwrap();
        let told = std::thread::spawn(move || {
            let mut text = String::new();
            told.read_to_string(&mut text).map(|_| text)
        });
        while child.try_wait().unwrap().is_none() {
            if began.elapsed() > LONGEST {
                child.kill().unwrap();
                child.wait().unwrap();
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let told = told.join().unwrap().unwrap();
        // Several fail at a time, and the lowest one is among them.
        let seeds = told
            .split("SIMULATION_SEED=")
            .skip(1)
            .map(|rest| rest.split(' ').next().unwrap_or_default());
        seeds.map(|seed| seed.parse().unwrap()).min()
    }

    #[test]
    fn the_simulation_finds_the_mutants() {
        let only = std::env::var("MUTANT").ok();
        let mutants = Mutant::all();
        let is_wanted = |mutant: &&Mutant| only.as_ref().is_none_or(|only| *only == mutant.name);
        let wanted = mutants.iter().filter(is_wanted);
        let (mut tried, mut survivors) = (0, Vec::new());
        for mutant in wanted {
            let (began, seed) = (Instant::now(), hunt(mutant));
            let found = seed.map_or("survives".to_owned(), |seed| {
                format!("found by seed {seed}")
            });
            println!(
                "{}: {found}, {:.0?}. {}",
                mutant.name,
                began.elapsed(),
                mutant.what
            );
            tried += 1;
            survivors.extend(seed.is_none().then_some(&mutant.name));
        }
        assert!(tried > 0, "there is no mutant {only:?}");
        assert!(survivors.is_empty(), "{survivors:?} survive");
    }
}
