//! Examines the servers of a locker.

use futures_util::future::join_all;
use lockhound::{Error, Key, Locker};

use crate::ask::server_report;
use crate::cases::{Deployment, Wanted};
use crate::report::Report;
use crate::rights::Questions;

/// Asks the servers of a locker what they keep of a lock, and returns a report with a verdict for
/// each promise.
///
/// The verdicts say whether locks survive a restart, a failover and a full memory, whether waiters
/// are woken by messages, whether fences grow, and which rights are missing.
///
/// The user of a server may have rights on some names only, such as `~app:*`. This function makes
/// up a name; if the user has no rights on it, the rights on the others are unknown.
/// [`examine_keys`] takes the names of locks.
///
/// Each master of a cluster has a line in the report, and each has to keep the promises, since no
/// other master has its locks.
///
/// It takes no lock and writes no key, except that [`connect`](lockhound::LockerBuilder::connect)
/// has begun the memory of several servers that had none
/// ([`restart_quarantine`](lockhound::LockerBuilder::restart_quarantine)). On each server it has a
/// connection of its own, `lockhound:visitor:<label>:<uuid>`, and sends `HELLO`, `INFO`, `CONFIG
/// GET`, `TIME` and, in a cluster, `CLUSTER INFO`. It asks for the user's rights with `ACL DRYRUN`
/// or, if the user may not send that, tries the commands. Commands that read are sent; commands
/// that write are called by a read-only script, and the server's refusal shows whether the user may
/// send them. The text of that script, as of any script, and an entry in the `ACL LOG` for each
/// refusal stay on the server. Servers before version 7 have no such scripts: there the rights that
/// scripts need, and those to subscribe, are unknown.
///
/// Connecting may take [`connect_timeout`](lockhound::LockerBuilder::connect_timeout), and the
/// answers as long again. The report says *unknown* for questions that are not answered by then,
/// and for those that the user may not ask. A server that cannot be reached is a line in the report
/// and not an error.
///
/// It needs no runtime: any executor runs it, such as `futures_executor::block_on` in a thread
/// without async code.
///
/// # Errors
/// [`Error::Closed`], [`Error::Forked`] or [`Error::WatchdogPanicked`].
///
/// # Cancel safety
/// Dropping the future discards the report, and ends the connections.
///
/// # Examples
/// ```no_run
/// # async fn example(locks: lockhound::Locker) -> Result<(), lockhound::Error> {
/// let report = lockhound_doctor::examine(&locks).await?;
/// println!("{report}");
/// for verdict in report.problems() {
///     eprintln!("{}: {}", verdict.promise, verdict.answer);
/// }
/// # Ok(())
/// # }
/// ```
pub async fn examine(locks: &Locker) -> Result<Report, Error> {
    report(
        locks,
        vec![format!("lockhound:doctor:{}", locks.id()).into()],
        false,
    )
    .await
}

/// Asks as [`examine`] does, about the locks with these names. Give one name for each pattern of
/// names that the user has rights on. A [`Key`] that comes from a lock stands for one of its kind:
/// `locks.rw("app:42").key().clone()`.
///
/// # Errors
/// As [`examine`]; [`Error::Config`] for an empty name.
///
/// # Cancel safety
/// As [`examine`].
pub async fn examine_keys<K: Into<Key>>(
    locks: &Locker,
    keys: impl IntoIterator<Item = K>,
) -> Result<Report, Error> {
    let keys: Vec<Key> = keys.into_iter().map(Into::into).collect();
    if keys.is_empty() {
        examine(locks).await
    } else {
        report(locks, keys, true).await
    }
}

async fn report(locks: &Locker, keys: Vec<Key>, is_of_locks: bool) -> Result<Report, Error> {
    let (rights, replicas) = (locks.rights(keys)?, locks.settings().replica_acks());
    let asked = Questions {
        rights,
        is_of_locks,
        replicas,
    };
    let servers = locks.servers().await?;
    let in_cluster = servers.iter().any(|server| server.is_in_cluster());
    let deployment = if in_cluster {
        Deployment::Cluster
    } else {
        Deployment::Independent(servers.len())
    };
    let reports = join_all(servers.iter().map(|server| server_report(server, &asked))).await;
    Ok(Report::new(
        &Wanted::new(locks.settings(), deployment),
        reports,
    ))
}
