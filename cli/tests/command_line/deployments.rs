//! Clusters, Sentinels and several servers: `run` while one of them dies, and those that look.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::Value;
use uuid::Uuid;

use crate::common::cluster::Cluster;
use crate::common::sentinel::Sentinels;
use crate::common::{
    Directory, Running, SOON, Server, at, eventually, said, soon, three_servers, urls,
};

/// A subcommand that writes an object or an array on each line. It is killed when it is dropped.
struct Lines {
    child: Child,
    lines: Receiver<String>,
}

impl Lines {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = channel();
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// Waits for a line like this.
    fn wait_for(&self, what: &str, so: impl Fn(&Value) -> bool) {
        loop {
            let line = self.lines.recv_timeout(3 * SOON);
            let line = line.unwrap_or_else(|_| panic!("{what}: no such line"));
            if so(&serde_json::from_str(&line).unwrap()) {
                return;
            }
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Starts `run` with a script that counts up in a file until there is a file `go`.
fn start(url: &str, directory: &Directory, key: &str) -> Running {
    let script = r#"echo $$ >"$0/inside"; until [ -e "$0/go" ]; do sleep 0.05; done; exit 5"#;
    let args = ["run", "--lease", "6s", key, "--", "sh", "-c", script];
    let running = Running::start(at(url, args).arg(directory.path()));
    directory.number("inside");
    running
}

/// Lets its script end, and checks that the lock was never lost.
fn end(running: Running, directory: &Directory) {
    std::fs::write(directory.file("go"), "").unwrap();
    let ended = running.end();
    assert_eq!((ended.code, &*ended.err), (Some(5), ""), "{ended:?}");
}

/// Has the lock held by somebody who does not renew it.
fn hold(server: &Server, key: &str) -> String {
    let owner = format!("{}:1", Uuid::new_v4());
    server.command::<()>(&["HSET", key, &owner, "1"]);
    owner
}

/// Waits until a replica has what its master has.
fn replicate(master: &Server, replica: &Server, key: &str) {
    // A replica answers no question about a key.
    let has_keys = || replica.command::<u32>(&["DBSIZE"]) > 0;
    hold(master, key);
    soon("it is replicated", has_keys);
    master.command::<()>(&["DEL", key]);
    soon("it is replicated", || !has_keys());
}

/// Returns the name of a lock that the first master has.
fn first_key_of(cluster: &Cluster) -> String {
    let mut names = (0..).map(|n: u32| format!("k{n}"));
    names
        .find(|it| cluster.first_master_of(it) == 0)
        .expect("there are many names")
}

/// A bug: they asked which masters there are at their start only, and then saw an outage for ever.
#[tokio::test(flavor = "multi_thread")]
async fn who_looks_at_a_cluster_follows_a_failover() {
    let cluster = Cluster::start_with(3, 1, &[]);
    let key = first_key_of(&cluster);
    let (master, replica) = (&cluster.masters()[0], cluster.replica_of(0));
    replicate(master, replica, &key);
    let fast = ["--interval", "50ms", "--json"];
    let watch = Lines::start(at(&cluster.url(), ["watch", &key]).args(fast));
    let top = Lines::start(at(&cluster.url(), ["top"]).args(fast));
    watch.wait_for("it is free", |lock| lock["kind"].is_null());
    top.wait_for("there is none", |locks| locks == &Value::Array(Vec::new()));
    master.kill();
    eventually(3 * SOON, "the replica takes over", || replica.is_master()).await;
    let owner = hold(replica, &key);
    watch.wait_for("it is held", |lock| lock["holders"][0]["owner"] == *owner);
    top.wait_for("it is listed", |locks| {
        locks[0]["key"] == *key && locks[0]["holders"][0]["owner"] == *owner
    });
    let ls = said(&mut at(&cluster.url(), ["ls"]));
    assert_eq!((ls.code, ls.keys()), (Some(0), vec![&*key]), "{ls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_outlives_a_failover_of_a_cluster() {
    let (cluster, directory) = (Cluster::start_with(3, 1, &[]), Directory::new());
    let key = first_key_of(&cluster);
    let replica = cluster.replica_of(0);
    replicate(&cluster.masters()[0], replica, &key);
    let running = start(&cluster.url(), &directory, &key);
    // It loses nothing.
    replica.command::<()>(&["CLUSTER", "FAILOVER"]);
    eventually(3 * SOON, "the replica takes over", || replica.is_master()).await;
    let before = replica.pttl(&key);
    eventually(SOON, "renewed by the new master", || {
        replica.pttl(&key) > before
    })
    .await;
    end(running, &directory);
    assert!(!replica.exists(&key));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_outlives_a_failover_by_sentinels() {
    let (group, directory) = (Sentinels::start(), Directory::new());
    let running = start(&group.url(), &directory, "k");
    soon("it is replicated", || group.replica.exists("k"));
    let watch = ["watch", "--interval", "50ms", "--json", "k"];
    let watch = Lines::start(&mut at(&group.url(), watch));
    watch.wait_for("it is held", |lock| lock["kind"] == "lock");
    group.sentinels[0].command::<()>(&["SENTINEL", "FAILOVER", "locks"]);
    group.failed_over().await;
    let before = group.replica.pttl("k");
    eventually(SOON, "renewed by the new master", || {
        group.replica.pttl("k") > before
    })
    .await;
    end(running, &directory);
    watch.wait_for("it is free", |lock| lock["kind"].is_null());
    assert!(!group.replica.exists("k"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_outlives_a_minority_and_no_more() {
    let servers = three_servers().await;
    let directory = Directory::new();
    let running = start(&urls(&servers), &directory, "k");
    servers[0].kill();
    let before = servers[1].pttl("k");
    soon("it is renewed", || servers[1].pttl("k") > before);
    servers[1].kill();
    let ended = running.end();
    assert_eq!(ended.code, Some(74), "{ended:?}");
    assert!(ended.err.contains("\"k\" is lost: "), "{ended:?}");
    assert!(!crate::common::runs(directory.number("inside")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_over_three_servers_is_listed_and_broken_as_one() {
    let servers = three_servers().await;
    let directory = Directory::new();
    let running = start(&urls(&servers), &directory, "k");
    servers[2].kill();
    let ls = said(&mut at(&urls(&servers), ["ls"]));
    assert_eq!((ls.code, ls.keys()), (Some(0), vec!["k"]), "{ls:?}");
    assert!(ls.err.contains(&servers[2].port().to_string()), "{ls:?}");
    let broken = said(&mut at(&urls(&servers), ["break", "-y", "k"]));
    assert_eq!(broken.code, Some(0), "{broken:?}");
    assert!(!servers[0].exists("k") && !servers[1].exists("k"));
    assert_eq!(running.end().code, Some(74));
}
