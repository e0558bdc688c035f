//! Several processes on one lock: who was inside when, and how long each side waits for the other.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use crate::common::children::{Errand, scratch, spawn_child};
use crate::common::proxy::{Mode, Proxy};
use crate::common::{Server, eventually, key, locker, machine, ms, record};
use lockhound::{Locker, Owner, RwLock};

/// How long a reader of [`read`] is inside.
const READ: Duration = Duration::from_millis(20);

/// One visit of a reader or a writer.
#[derive(Debug, Clone, Copy)]
struct Visit {
    writes: bool,
    fence: u64,
    entered: u64,
    left: u64,
}

/// Checks that no writer was inside beside anybody, and that fences are in order: each is above
/// those of the writes before it and, for a write, above those of the reads before it.
fn check(visits: &[Visit]) -> Result<(), String> {
    let mut visits = visits.to_vec();
    visits.sort_by_key(|visit| visit.entered);
    let (mut last_left, mut last_write) = (None::<Visit>, None::<Visit>);
    let mut highest = [0; 2];
    for visit in visits {
        let beside = if visit.writes { last_left } else { last_write };
        if let Some(other) = beside.filter(|other| other.left > visit.entered) {
            return Err(format!("{visit:?} was inside beside {other:?}"));
        }
        // Reads that are inside together are in no order.
        let above = if visit.writes {
            highest[0].max(highest[1])
        } else {
            highest[1]
        };
        if visit.fence <= above {
            return Err(format!("the fence of {visit:?} is not above {above}"));
        }
        let highest = &mut highest[usize::from(visit.writes)];
        *highest = visit.fence.max(*highest);
        if last_left.is_none_or(|last| last.left < visit.left) {
            last_left = Some(visit);
        }
        if visit.writes {
            last_write = Some(visit);
        }
    }
    Ok(())
}

fn parse(path: &Path) -> Vec<Visit> {
    let text = std::fs::read_to_string(path).unwrap();
    std::fs::remove_file(path).unwrap();
    text.lines()
        .map(|line| {
            let words: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
            let [writes, fence, entered, left] = words.try_into().unwrap();
            Visit {
                writes: writes == 1,
                fence,
                entered,
                left,
            }
        })
        .collect()
}

pub(crate) fn play([task, url, key, rounds, out]: Errand) {
    let rounds: usize = rounds.parse().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let locks = Locker::connect(url).await.unwrap();
        let lock = locks.rw(&*key);
        let end = end_of(out.as_ref());
        let tasks = (0..16).map(|number| {
            let (lock, task, end) = (lock.clone(), task.clone(), end.clone());
            tokio::spawn(async move {
                match &*task {
                    "read" => read(&lock, rounds, &end).await,
                    "write" if number == 0 => write(&lock, rounds, &end).await,
                    "write" => Vec::new(),
                    "mix" => mix(&lock, rounds).await,
                    other => panic!("{other}"),
                }
            })
        });
        let mut file = std::fs::File::create(out).unwrap();
        for task in tasks.collect::<Vec<_>>() {
            for visit in task.await.unwrap() {
                let Visit {
                    writes,
                    fence,
                    entered,
                    left,
                } = visit;
                writeln!(file, "{} {fence} {entered} {left}", u8::from(writes)).unwrap();
            }
        }
        locks.close().await;
    });
}

async fn visit(lock: &RwLock, writes: bool, stay: Duration) -> Visit {
    if writes {
        let guard = lock.write().lock().await.unwrap();
        let (fence, entered) = (guard.fence().get(), record::now());
        tokio::time::sleep(stay).await;
        guard.check().unwrap();
        let left = record::now();
        guard.unlock().await.unwrap();
        Visit {
            writes,
            fence,
            entered,
            left,
        }
    } else {
        let guard = lock.read().lock().await.unwrap();
        let (fence, entered) = (guard.fence().get(), record::now());
        tokio::time::sleep(stay).await;
        guard.check().unwrap();
        let left = record::now();
        guard.unlock().await.unwrap();
        Visit {
            writes,
            fence,
            entered,
            left,
        }
    }
}

/// Comes again as soon as it has left, until it is told to end.
async fn read(lock: &RwLock, rounds: usize, end: &Path) -> Vec<Visit> {
    let mut visits = Vec::new();
    while visits.len() < rounds && !end.exists() {
        visits.push(visit(lock, false, READ).await);
    }
    visits
}

async fn write(lock: &RwLock, rounds: usize, end: &Path) -> Vec<Visit> {
    let mut visits = Vec::new();
    while visits.len() < rounds && !end.exists() {
        visits.push(visit(lock, true, ms(5)).await);
    }
    visits
}

/// Mostly reads; some writes, some of which become reads, and some callers that give up.
async fn mix(lock: &RwLock, rounds: usize) -> Vec<Visit> {
    let mut visits = Vec::new();
    for _ in 0..rounds {
        match fastrand::u8(0..10) {
            0 => visits.push(visit(lock, true, Duration::ZERO).await),
            1 => {
                let write = lock.write().lock().await.unwrap();
                let (fence, entered) = (write.fence().get(), record::now());
                let left = record::now();
                visits.push(Visit {
                    writes: true,
                    fence,
                    entered,
                    left,
                });
                let read = write.downgrade().await.unwrap();
                let (fence, entered) = (read.fence().get(), record::now());
                let left = record::now();
                visits.push(Visit {
                    writes: false,
                    fence,
                    entered,
                    left,
                });
            }
            2 => {
                let wait = ms(fastrand::u64(0..10));
                let _gave_up = tokio::time::timeout(wait, lock.write().lock()).await;
            }
            _ => visits.push(visit(lock, false, ms(fastrand::u64(0..2))).await),
        }
    }
    visits
}

fn children(task: &str, server: &Server, key: &str, rounds: usize) -> Vec<(Child, PathBuf)> {
    (0..4)
        .map(|_| {
            let out = scratch("visits");
            (spawn_child(task, &server.url(), &[key], rounds, &out), out)
        })
        .collect()
}

/// The file that tells the child which reports here to end.
fn end_of(out: &Path) -> PathBuf {
    out.with_extension("end")
}

/// Tells the children to end, and returns their visits.
fn end(children: Vec<(Child, PathBuf)>) -> Vec<Visit> {
    for (_, out) in &children {
        std::fs::write(end_of(out), "").unwrap();
    }
    let files: Vec<_> = children.iter().map(|(_, out)| end_of(out)).collect();
    let visits = ended(children);
    files
        .iter()
        .for_each(|file| std::fs::remove_file(file).unwrap());
    visits
}

fn ended(children: Vec<(Child, PathBuf)>) -> Vec<Visit> {
    let mut visits = Vec::new();
    for (mut child, out) in children {
        assert!(child.wait().unwrap().success(), "every caller returns");
        visits.extend(parse(&out));
    }
    visits
}

#[test]
fn the_check_finds_a_broken_lock() {
    let visit = |writes, fence, entered, left| Visit {
        writes,
        fence,
        entered,
        left,
    };
    let fine = [
        visit(false, 1, 1, 5),
        visit(false, 3, 2, 4),
        visit(false, 2, 3, 6),
        visit(true, 4, 6, 7),
        visit(false, 5, 8, 9),
    ];
    check(&fine).unwrap();
    let beside = |extra| check(&[&fine[..], &[extra]].concat()).unwrap_err();
    assert!(
        beside(visit(true, 9, 4, 5)).contains("beside"),
        "a writer beside readers"
    );
    assert!(
        beside(visit(false, 9, 6, 8)).contains("beside"),
        "a reader beside a writer"
    );
    assert!(
        beside(visit(false, 4, 10, 11)).contains("not above"),
        "a read after a write"
    );
    assert!(
        beside(visit(true, 5, 10, 11)).contains("not above"),
        "a write after a read"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn four_processes_read_and_write_one_after_the_other() {
    let (server, key) = (Server::start(), key());
    let visits = ended(children("mix", &server, &key, 60));
    assert!(visits.len() > 4 * 16 * 40, "{}", visits.len());
    check(&visits).unwrap();
    eventually(ms(10_000), "nothing is left", || !server.exists(&key)).await;
}

/// Waits until at least so many readers are inside, or groups of them: those of a process that came
/// together are one field.
async fn are_inside(lock: &RwLock, readers: usize) {
    let start = Instant::now();
    while lock.holders().await.unwrap().readers().len() < readers {
        assert!(start.elapsed() < ms(30_000), "the readers do not come");
        tokio::time::sleep(ms(1)).await;
    }
}

/// Each of 64 readers comes again as soon as it has left.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_does_not_starve_behind_readers() {
    let (server, key) = (Server::start(), key());
    let readers = children("read", &server, &key, 2_000);
    let lock = locker(&server).await.rw(&*key);
    are_inside(&lock, 5).await;
    let mut waits = Vec::new();
    for _ in 0..8 {
        let start = Instant::now();
        let guard = lock.write().owned_by(Owner::new()).lock().await.unwrap();
        waits.push(start.elapsed());
        guard.unlock().await.unwrap();
        are_inside(&lock, 2).await;
    }
    waits.sort_unstable();
    // A sixth of the lease: the re-check.
    assert!(machine::within(waits[7], ms(5_000)), "{waits:?}");
    assert!(machine::within(waits[4], READ + ms(30)), "{waits:?}");
    check(&end(readers)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_does_not_starve_behind_writers() {
    let server = Server::start();
    reads_behind_writers(&server, &locker(&server).await, Duration::ZERO).await;
}

/// Its asks take longer than the turn of a reader that is near.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_far_away_does_not_starve_behind_writers() {
    const AWAY: Duration = Duration::from_millis(50);
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let far = Locker::connect(proxy.url()).await.unwrap();
    proxy.set(Mode::Late(b"EVALSHA".to_vec(), AWAY));
    // The server has the script, and the locker has measured how far away it is.
    drop(far.rw(key()).read().lock().await.unwrap());
    reads_behind_writers(&server, &far, AWAY).await;
}

/// Each of four writers comes again as soon as it has left. An ask of the reader takes so long to
/// the server.
async fn reads_behind_writers(server: &Server, locks: &Locker, away: Duration) {
    let key = key();
    let writers = children("write", server, &key, 2_000);
    let lock = locks.rw(&*key);
    eventually(ms(30_000), "writers come", || server.exists(&key)).await;
    let mut reads = Vec::new();
    for _ in 0..12 {
        let came = record::now() + u64::try_from(away.as_nanos()).unwrap();
        let guard = lock.read().owned_by(Owner::new()).lock().await.unwrap();
        reads.push((came, record::now()));
        guard.unlock().await.unwrap();
        tokio::time::sleep(ms(10)).await;
    }
    let starved = machine::starved();
    let visits = end(writers);
    check(&visits).unwrap();
    // Those that were inside after the call, and before the reader was.
    let writes = |&(came, granted): &(u64, u64)| {
        let between = |write: &&Visit| write.left > came && write.entered < granted;
        visits.iter().filter(between).count()
    };
    let mut writes: Vec<_> = reads.iter().map(writes).collect();
    writes.sort_unstable();
    // A reader that is woken too late for its turn has another one after the next write.
    assert!(writes[9] <= 2 || starved, "{writes:?}");
    assert!(writes[11] <= 4 || starved && writes[11] <= 20, "{writes:?}");
}
