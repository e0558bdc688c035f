//! Reads the replies of scripts as the answers to their commands.

use std::sync::Arc;
use std::time::Duration;

use crate::command::{
    Acquire, Answer, Command, Count, HandOver, Identity, Place, Raise, Release, Remembrance, Renew, Standing, Told,
    no_lock, remaining,
};
use crate::error::{Error, ServerErrorKind};
use crate::fence::Fence;
use crate::key::Key;
use crate::node::{Outcome, Reply, is_forbidden};
use crate::shown::cut;

/// Returns whether this reply says that a step found nothing to do.
pub(super) fn idle(reply: &Reply) -> bool {
    taken_by_another(reply).is_some() || is_forgotten(reply) || *reply == GONE
}

/// The reply of a release or a hand-over that found nothing to release.
const GONE: Reply = Reply::Int(-1);

/// Reads the reply to a command as its answer.
pub(super) fn read(node: &Arc<str>, command: &Command, reply: Outcome<Reply>) -> Outcome<Answer> {
    let reply = match command {
        Command::Inspect(key) | Command::Holders(key) => of_a_lock(node, key, reply),
        _ => reply,
    };
    reply.and_then(node, |reply| match command {
        Command::Acquire { claims, .. } => acquired(reply, claims.len()).map(Answer::Acquire),
        Command::Count { .. } => counted(reply).map(Answer::Count),
        Command::Release { .. } | Command::Keep { .. } | Command::Pass { .. } => released(reply).map(Answer::Release),
        Command::HandOver { .. } => handed_over(reply).map(Answer::HandOver),
        Command::Retake { .. } if is_forgotten(reply) => Some(Answer::Retake(None)),
        Command::Ask { .. } if is_forgotten(reply) => Some(Answer::Ask(None)),
        Command::Retake { .. } => yes_or_no(reply).map(|answer| Answer::Retake(Some(answer))),
        Command::Extend { .. } => yes_or_no(reply).map(Answer::Extend),
        Command::Raise { .. } => raised(reply).map(Answer::Raise),
        Command::Renew { claims, .. } => renewed(reply, claims.len()).map(Answer::Renew),
        Command::Label { .. } => (*reply == Reply::Int(1)).then_some(Answer::Label),
        Command::LabelOf(_) => label(reply).map(Answer::LabelOf),
        Command::Inspect(_) => standing(reply).map(Answer::Inspect),
        Command::Holders(_) => names(reply).map(Answer::Holders),
        Command::Force { .. } => yes_or_no(reply).map(Answer::Force),
        Command::Vet(_) => identity(reply).map(Answer::Vet),
        Command::Ask { .. } => told(reply).map(|told| Answer::Ask(Some(told))),
        Command::Open(_) => yes_or_no(reply).map(Answer::Open),
    })
}

fn acquired(reply: &Reply, locks: usize) -> Option<Option<Acquire>> {
    if is_forgotten(reply) {
        return Some(None);
    }
    match array(reply)? {
        [Reply::Int(1), given @ ..] if given.len() == locks => {
            given.iter().map(fence).collect::<Option<_>>().map(|fences| Some(Acquire::Granted(fences)))
        }
        [Reply::Int(0), Reply::Int(ttl), Reply::Int(place)] => {
            u64::try_from(*place).ok().map(|place| Some(Acquire::Listed(remaining(*ttl), Place::Behind(place))))
        }
        [Reply::Int(0), Reply::Int(ttl), Reply::Bytes(error)] => Some(Some(match forbidden(error) {
            Some(error) => Acquire::Listed(remaining(*ttl), Place::Refused(error)),
            None => Acquire::Held(remaining(*ttl)),
        })),
        _ => taken_by_another(reply).map(|ttl| Some(Acquire::Held(remaining(ttl)))),
    }
}

/// Returns why the list cannot be used, if that lasts: the user has no right to it. Other errors (the server is out of
/// memory, or the key of the list is something else) do not last; all subscribers were notified this time.
fn forbidden(error: &[u8]) -> Option<String> {
    let error = cut(error);
    is_forbidden(&error).then_some(error)
}

fn is_forgotten(reply: &Reply) -> bool {
    array(reply) == Some(&[Reply::Int(-1)])
}

/// Returns the TTL of a lock that another holds.
fn taken_by_another(reply: &Reply) -> Option<i64> {
    match array(reply)? {
        [Reply::Int(0), Reply::Int(ttl)] | [Reply::Int(0), Reply::Int(ttl), _] => Some(*ttl),
        _ => None,
    }
}

fn fence(reply: &Reply) -> Option<Fence> {
    int(reply).and_then(Fence::read)
}

fn counted(reply: &Reply) -> Option<Count> {
    Some(if yes_or_no(reply)? { Count::Written } else { Count::Gone })
}

fn released(reply: &Reply) -> Option<Release> {
    match reply {
        Reply::Int(-1) => Some(Release::Gone),
        Reply::Int(told) => u64::try_from(*told).ok().map(Release::Released),
        _ => match array(reply)? {
            [Reply::Int(place), Reply::Int(turn), Reply::Int(others), Reply::Int(waiting)] => {
                let place = u64::try_from(*place).ok();
                let [turn, others, waiting] = [turn, others, waiting].map(|number| u64::try_from(*number).ok());
                let turn = Some(turn?).filter(|turn| *turn > 0).map(Duration::from_millis);
                Some(Release::PassedOn { place, turn, others: others?, waiting: waiting? })
            }
            [Reply::Int(told), Reply::Bytes(error)] => match forbidden(error) {
                Some(error) => Some(Release::Unlisted(error)),
                None => u64::try_from(*told).ok().map(Release::Released),
            },
            _ => None,
        },
    }
}

fn handed_over(reply: &Reply) -> Option<HandOver> {
    match reply {
        Reply::Array(items) => match items.as_slice() {
            [Reply::Int(1), given] => fence(given).map(HandOver::Granted),
            _ => None,
        },
        reply => (*reply == GONE).then_some(HandOver::Gone),
    }
}

fn raised(reply: &Reply) -> Option<Raise> {
    match int(reply)? {
        1 => Some(Raise::Raised),
        0 => Some(Raise::Gone),
        -1 => Some(Raise::TooHigh),
        _ => None,
    }
}

/// Returns the answer for each lock. The reply names only the locks that were not renewed, and counts the others.
fn renewed(reply: &Reply, locks: usize) -> Option<Vec<Renew>> {
    let [Reply::Int(renewed), odd @ ..] = array(reply)? else { return None };
    let mut answers = vec![Renew::Renewed; locks];
    for pair in odd.chunks(2) {
        let [Reply::Int(position), said] = pair else { return None };
        let answer = answers.get_mut(usize::try_from(*position).ok()?.checked_sub(1)?)?;
        *answer = match said {
            Reply::Int(0) => Renew::Gone,
            Reply::Bytes(error) => {
                let error = cut(error);
                if error.contains("WRONGTYPE") { Renew::Gone } else { Renew::Failed(error) }
            }
            _ => return None,
        };
    }
    let counted = answers.iter().filter(|answer| **answer == Renew::Renewed).count();
    (usize::try_from(*renewed) == Ok(counted)).then_some(answers)
}

fn standing(reply: &Reply) -> Option<Option<Standing>> {
    match array(reply)? {
        [] => Some(None),
        [Reply::Int(ttl), Reply::Bytes(owner), Reply::Int(count)] => Some(Some(Standing {
            owner: owner.to_vec(),
            // A negative count holds the lock all the same.
            count: u64::try_from(*count).unwrap_or_default(),
            remaining: remaining(*ttl),
        })),
        _ => None,
    }
}

/// Returns a label, or `None` in it if there is none.
fn label(reply: &Reply) -> Option<Option<Vec<u8>>> {
    match reply {
        Reply::Bytes(text) => Some(Some(text.to_vec())),
        Reply::Array(items) if items.is_empty() => Some(None),
        _ => None,
    }
}

fn names(reply: &Reply) -> Option<Vec<String>> {
    array(reply)?.iter().map(text).collect()
}

/// Returns the types that a server names.
pub(super) fn types(reply: &Reply) -> Option<Vec<String>> {
    names(reply)
}

/// Makes an error of a reply that names a type: the key is not a lock.
fn of_a_lock(node: &Arc<str>, key: &Key, reply: Outcome<Reply>) -> Outcome<Reply> {
    match reply {
        Outcome::Done(Reply::Bytes(kind)) => {
            Outcome::Refused(Error::refused(ServerErrorKind::WrongType, node, no_lock(key, &cut(&kind))))
        }
        reply => reply,
    }
}

fn identity(reply: &Reply) -> Option<Identity> {
    let [run_id, role, master, rest @ ..] = array(reply)? else { return None };
    let memory = if rest.is_empty() { None } else { Some(remembrance(rest)?) };
    Some(Identity { run_id: text(run_id)?, role: text(role)?, master: text(master)?, memory })
}

fn remembrance(items: &[Reply]) -> Option<Remembrance> {
    let [id, servers, lease, waited] = items else { return None };
    let waited = if int(waited)? == -1 { None } else { Some(duration(waited)?) };
    Some(Remembrance { id: text(id)?, servers: text(servers)?.parse().ok()?, lease: duration(lease)?, waited })
}

fn told(reply: &Reply) -> Option<Told> {
    let [votes, lease, mark] = array(reply)? else { return None };
    Some(Told { votes: yes_or_no(votes)?, lease: duration(lease)?, mark: text(mark)? })
}

fn duration(reply: &Reply) -> Option<Duration> {
    int(reply).and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis)
}

fn yes_or_no(reply: &Reply) -> Option<bool> {
    match int(reply)? {
        n @ (0 | 1) => Some(n == 1),
        _ => None,
    }
}

fn array(reply: &Reply) -> Option<&[Reply]> {
    if let Reply::Array(items) = reply { Some(items) } else { None }
}

fn int(reply: &Reply) -> Option<i64> {
    if let Reply::Int(number) = reply { Some(*number) } else { None }
}

fn text(reply: &Reply) -> Option<String> {
    if let Reply::Bytes(bytes) = reply { String::from_utf8(bytes.to_vec()).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_renewals_are_read_by_kind() {
        let bytes = |error: &str| Reply::Bytes(error.to_owned().into());
        let read = |items: Vec<Reply>| renewed(&Reply::Array(items), 3);
        let all = [Reply::Int(3)];
        assert_eq!(read(all.to_vec()), Some(vec![Renew::Renewed; 3]));
        let odd = vec![Reply::Int(1), Reply::Int(1), Reply::Int(0), Reply::Int(3), bytes("WRONGTYPE Operation")];
        assert_eq!(read(odd), Some(vec![Renew::Gone, Renew::Renewed, Renew::Gone]));
        let failed = vec![Reply::Int(2), Reply::Int(2), bytes("OOM")];
        assert_eq!(read(failed), Some(vec![Renew::Renewed, Renew::Failed("OOM".into()), Renew::Renewed]));
        assert_eq!(remaining(-1), None);
        assert_eq!(remaining(0), Some(Duration::ZERO));
    }

    #[test]
    fn a_reply_that_does_not_account_for_every_lock_renews_none() {
        let read = |items: &[i64]| renewed(&Reply::Array(items.iter().map(|n| Reply::Int(*n)).collect()), 3);
        for items in
            [&[][..], &[2], &[4], &[-1], &[3, 1, 0], &[2, 4, 0], &[2, 0, 0], &[2, 1], &[2, 1, 1], &[1, 1, 0, 1, 0]]
        {
            assert_eq!(read(items), None, "{items:?}");
        }
        assert_eq!(renewed(&Reply::Nil, 3), None);
    }
}
