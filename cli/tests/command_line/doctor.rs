//! `doctor`: the exit code, and the line to paste.

use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::common::{SOON, Server, at, eventually, lockhound, said};

/// Makes a user with all rights, and then these rules. Returns the address with its password.
fn user(server: &Server, rules: &[&str]) -> String {
    let all = [
        "ACL",
        "SETUSER",
        "app",
        "on",
        ">secret-word",
        "~*",
        "&*",
        "+@all",
    ];
    server.command::<()>(&[&all[..], rules].concat());
    server.url().replace("//", "//app:secret-word@")
}

#[test]
fn the_code_of_the_doctor_is_the_state_of_the_servers() {
    let safe = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let kept = said(&mut lockhound(&safe, ["doctor"]));
    assert_eq!((kept.code, &*kept.err), (Some(0), ""), "{kept:?}");
    assert!(kept.out.ends_with("\nstate: kept\n"), "{kept:?}");

    let forgetful = Server::start();
    let risk = said(&mut lockhound(&forgetful, ["doctor", "--json"]));
    assert_eq!((risk.code, &*risk.err), (Some(1), ""), "{risk:?}");
    let object = risk.json();
    assert_eq!(
        (&object["state"], &object["acl"]),
        (&json!("at risk"), &json!([]))
    );
    let promises = object["promises"].as_array().unwrap();
    let of = |name: &str| promises.iter().find(|it| it["promise"] == name).unwrap();
    assert_eq!(
        (&of("locking")["answer"], &of("restart")["answer"]),
        (&json!("kept"), &json!("broken"))
    );
    assert!(
        !of("restart")["reasons"][0]["problem"]
            .as_str()
            .unwrap()
            .is_empty()
    );

    let url = user(&forgetful, &["-hsetnx", "-pexpire"]);
    let broken = said(&mut at(&url, ["doctor"]));
    assert_eq!((broken.code, &*broken.err), (Some(2), ""), "{broken:?}");
    assert!(
        broken.out.contains("\nACL SETUSER app +hsetnx +pexpire\n"),
        "{broken:?}"
    );
    assert!(broken.out.ends_with("\nstate: broken\n"), "{broken:?}");
    assert!(!broken.out.contains("secret-word"), "{broken:?}");
    let object = said(&mut at(&url, ["doctor", "--json"])).json();
    assert_eq!(object["acl"], json!(["ACL SETUSER app +hsetnx +pexpire"]));
    assert_eq!(
        object["servers"][0]["missing"],
        json!(["+hsetnx", "+pexpire"])
    );
}

/// The line that is printed can be pasted, and its user can do what the report says.
#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_asks_for_the_rights_of_some_locks() {
    let server = Server::start();
    let url = user(&server, &["resetkeys", "~other:*"]);
    let lacking = said(&mut at(
        &url,
        ["doctor", "--json", "--for", "app:4 2", "other:1"],
    ));
    assert_eq!(lacking.code, Some(2), "{lacking:?}");
    let object = lacking.json();
    let lines: Vec<&str> = object["acl"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert!(lines[0].contains(" ~app:4?2 "), "{lines:?}");
    let own = lines[1]
        .strip_prefix("ACL SETUSER NAME reset resetchannels on >PASSWORD ")
        .unwrap();
    let mut cli = std::process::Command::new("redis-cli");
    let line = format!("ACL SETUSER own reset resetchannels on >pass-word {own}\n");
    let mut child = cli
        .args(["-p", &server.port().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(line.as_bytes())
        .unwrap();
    let answer = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&answer.stdout).trim(), "OK");
    let locks = lockhound::Locker::connect(server.url().replace("//", "//own:pass-word@"))
        .await
        .unwrap();
    let guard = locks.get("app:4 2").lock().await.unwrap();
    assert!(locks.get("app:4 2").holder().await.unwrap().is_some());
    guard.unlock().await.unwrap();
    assert!(locks.get("app:4").lock().await.is_err());
    eventually(SOON, "it is released", || !server.exists("app:4 2")).await;
    locks.close().await;
}
