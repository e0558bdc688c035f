//! The completions and manual pages in the repository are those of the options.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::common::{Directory, said, without_server};

fn files(directory: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(directory).unwrap().map(|it| it.unwrap());
    entries
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read_to_string(entry.path()).unwrap())
        })
        .collect()
}

#[test]
fn they_are_current() {
    let made = Directory::new();
    let mut command = without_server(["generate".as_ref(), made.path()]);
    assert_eq!(said(&mut command).code, Some(0));
    let kept = files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("generated"));
    let made = files(made.path());
    assert!(made.len() >= 5, "{:?}", made.keys());
    assert!(
        kept == made,
        "run: cargo run -p lockhound-cli -- generate cli/generated"
    );
}

#[test]
fn bash_completes_with_them() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("generated/lockhound.bash");
    let script = r#". "$0"; COMP_WORDS=(lockhound run --on-) COMP_CWORD=2
        _lockhound lockhound --on- run; echo "${COMPREPLY[*]}""#;
    let ended = said(Command::new("bash").args(["-c", script]).arg(file));
    assert_eq!(&*ended.out, "--on-lost\n", "{ended:?}");
}
