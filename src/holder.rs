//! The holder of a lock, as the servers report it.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The holder of a lock at the moment when the servers were asked.
///
/// Somebody else may hold the lock by now.
///
/// With several servers it is the owner that most of them name; of owners that are named equally
/// often, it is the one that the earliest server names. Clients that use a separate owner on each
/// server, such as Redisson's `RedissonRedLock`, have no majority for one owner:
/// [`is_agreed`](Self::is_agreed) is `false` then, and [`by_node`](Self::by_node) lists all owners.
#[derive(Clone, PartialEq, Eq)]
pub struct Holder {
    named: NodeHolder,
    by_node: Vec<NodeHolder>,
    agreed: bool,
    label: Option<String>,
}

/// The holder of a lock on one server: see [`Holder::by_node`].
#[derive(Clone, PartialEq, Eq)]
pub struct NodeHolder {
    pub(crate) node: Arc<str>,
    pub(crate) owner: Vec<u8>,
    pub(crate) hold_count: u64,
    pub(crate) remaining: Option<Duration>,
}

impl Holder {
    /// Returns the holder by the answers of these nodes, or `None` if no node names one.
    pub(crate) fn of(mut by_node: Vec<NodeHolder>, majority: usize) -> Option<Self> {
        let named_by = |owner: &[u8]| by_node.iter().filter(|node| node.owner == owner).count();
        // Of several maxima `max_by_key` takes the last.
        let named = by_node
            .iter()
            .rev()
            .max_by_key(|node| named_by(&node.owner))?
            .clone();
        let agreed = named_by(&named.owner) >= majority;
        by_node.sort_by_key(|node| node.owner != named.owner);
        Some(Self {
            named,
            by_node,
            agreed,
            label: None,
        })
    }

    /// Returns the same holder with the label of its locker, if the servers have one.
    pub(crate) fn labelled(self, label: Option<String>) -> Self {
        Self { label, ..self }
    }

    /// Returns the label of the holder's locker, by default its host name and process id.
    ///
    /// See [`LockerBuilder::label`](crate::LockerBuilder::label).
    ///
    /// `None` for other clients, such as Redisson's, and if the locker could not write its label,
    /// as a user of an ACL without the right, or if the server has forgotten it: the locker writes
    /// it again every 20 minutes. Control characters are escaped, and bytes that are not UTF-8 are
    /// replaced. Nothing proves that the holder wrote it.
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// Returns the owner, byte for byte as it is on the server.
    ///
    /// It is `uuid:task-id:generation` for a holder that uses this crate, and the other client's
    /// own text for others.
    pub fn owner_bytes(&self) -> &[u8] {
        self.named.owner_bytes()
    }

    /// Returns the owner as text.
    ///
    /// Bytes that are not UTF-8 are replaced.
    pub fn owner(&self) -> Cow<'_, str> {
        self.named.owner()
    }

    /// Returns how many times the owner has entered.
    ///
    /// It may be out of date. In [`Format::Plain`](crate::Format::Plain) it is always 1, since only
    /// the holder's process knows the count.
    pub fn hold_count(&self) -> u64 {
        self.named.hold_count
    }

    /// Returns how much of the lease is left, or `None` if the lock has no lease.
    ///
    /// It is the answer of the first server that names this owner. A renewal extends it.
    pub fn remaining(&self) -> Option<Duration> {
        self.named.remaining
    }

    /// Returns whether a majority of the servers names this owner.
    ///
    /// Always true with one server.
    ///
    /// If it is false, the servers name several owners, or too few of them have answered. The lock
    /// cannot be acquired then either.
    pub fn is_agreed(&self) -> bool {
        self.agreed
    }

    /// Returns the holder on each server on which somebody holds the lock.
    ///
    /// First come those that name this owner, then the others, both in the order in which the
    /// servers were given to the builder.
    ///
    /// It does not contain servers on which the lock is free, or that have not answered: once a
    /// majority names one owner, the call does not wait for the others.
    pub fn by_node(&self) -> &[NodeHolder] {
        &self.by_node
    }
}

impl NodeHolder {
    /// Returns the address of the server, its password as `***`.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Returns the owner, byte for byte, as [`Holder::owner_bytes`].
    pub fn owner_bytes(&self) -> &[u8] {
        &self.owner
    }

    /// Returns the owner as text, as [`Holder::owner`].
    pub fn owner(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.owner)
    }

    /// Returns how many times the owner has entered, as [`Holder::hold_count`].
    pub fn hold_count(&self) -> u64 {
        self.hold_count
    }

    /// Returns how much of the lease is left on this server, or `None` if the lock has no lease.
    ///
    /// A renewal extends it.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }
}

/// Who has a read-write lock, at the moment when the server was asked.
///
/// Others may have it by now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holders {
    readers: Vec<ReadWriteHolder>,
    writer: Option<ReadWriteHolder>,
}

/// In which way a read-write lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockMode {
    /// No client has it.
    Free,
    /// Readers have it.
    Read,
    /// A writer has it.
    ///
    /// Its owner may read, too.
    Write,
}

/// A reader or the writer of a read-write lock: see [`Holders`].
#[derive(Clone, PartialEq, Eq)]
pub struct ReadWriteHolder {
    pub(crate) owner: Vec<u8>,
    pub(crate) count: u64,
    pub(crate) remaining: Option<Duration>,
    pub(crate) label: Option<String>,
}

impl Holders {
    /// Tells the writer from the readers by its field.
    pub(crate) fn new(mut readers: Vec<ReadWriteHolder>) -> Self {
        let is_writer = |holder: &ReadWriteHolder| holder.owner.ends_with(b":write");
        let writer = readers
            .iter()
            .position(is_writer)
            .map(|at| readers.remove(at));
        Self { readers, writer }
    }

    /// Returns in which way the lock is held.
    pub fn mode(&self) -> LockMode {
        match (&self.writer, &*self.readers) {
            (Some(_), _) => LockMode::Write,
            (None, []) => LockMode::Free,
            (None, _) => LockMode::Read,
        }
    }

    /// Returns the readers, in no particular order.
    ///
    /// With a writer, these are the readers inside its write. Readers of one locker that came
    /// together are one of them. At most 1,000 holders are listed.
    pub fn readers(&self) -> &[ReadWriteHolder] {
        &self.readers
    }

    /// Returns the writer.
    pub fn writer(&self) -> Option<&ReadWriteHolder> {
        self.writer.as_ref()
    }
}

impl ReadWriteHolder {
    /// Returns the owner as text, as [`Holder::owner`].
    ///
    /// A writer's ends in `:write`. Bytes that are not UTF-8 are replaced.
    pub fn owner(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.owner)
    }

    /// Returns how many times a Redisson owner has entered.
    ///
    /// For an owner of this crate it is always 1, since only its process knows the count.
    pub fn hold_count(&self) -> u64 {
        self.count
    }

    /// Returns how much of its lease is left, or `None` if it has no lease.
    ///
    /// A renewal extends it. A reader whose lease is over and that is not yet removed has zero.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// Returns the label of its locker, as [`Holder::label`].
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }
}

/// How many permits of a semaphore are free, and who has the others.
///
/// It is as it was at the moment when the server was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    free: Option<i64>,
    taken: u64,
    /// Whether each permit that is taken has a record.
    pub(crate) knows_capacity: bool,
    pub(crate) holders: Vec<PermitHolder>,
}

/// Who has permits of a semaphore: see [`Usage`].
#[derive(Clone, PartialEq, Eq)]
pub struct PermitHolder {
    pub(crate) owner: Vec<u8>,
    pub(crate) permits: u32,
    pub(crate) remaining: Option<Duration>,
    pub(crate) label: Option<String>,
}

impl Usage {
    /// Makes it of what the server says: each member is one permit, with what is left of its lease.
    /// The second permit of a claim, and each after it, is named after the first, which may not be
    /// among them.
    pub(crate) fn new(
        free: Option<i64>,
        taken: u64,
        members: Vec<(Vec<u8>, Option<Duration>)>,
    ) -> Self {
        let mut permits: Vec<_> = members
            .into_iter()
            .map(|(member, remaining)| match named_after(&member) {
                Some(first) => (first.into(), remaining),
                None => (member, remaining),
            })
            .collect();
        permits.sort();
        let holder = |of_one: &[(Vec<u8>, _)]| PermitHolder {
            owner: of_one[0].0.clone(),
            permits: u32::try_from(of_one.len()).unwrap_or(u32::MAX),
            // The shortest.
            remaining: of_one[0].1,
            label: None,
        };
        Self {
            free,
            taken,
            knows_capacity: true,
            holders: permits.chunk_by(|a, b| a.0 == b.0).map(holder).collect(),
        }
    }

    /// Returns how many permits there are, or `None` if that is not set.
    ///
    /// Zero if a JVM has made it fewer than none. Of
    /// [`Locker::semaphore`](crate::Locker::semaphore) it is always `None`, since what JVMs take
    /// has no record.
    pub fn capacity(&self) -> Option<u32> {
        let known = self.free.filter(|_| self.knows_capacity)?;
        let all = known.saturating_add_unsigned(self.taken).max(0);
        Some(u32::try_from(all).unwrap_or(u32::MAX))
    }

    /// Returns how many permits are free.
    ///
    /// Zero if more are taken than the capacity, or if none is set.
    pub fn free(&self) -> u32 {
        u32::try_from(self.free.unwrap_or(0).max(0)).unwrap_or(u32::MAX)
    }

    /// Returns how many permits are taken, as far as there are records.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns who has them, of at most 1,000 permits.
    ///
    /// These are the permits that last longest, first of all those without a lease. The others come
    /// back sooner by themselves. A holder may be missing that has not renewed for its lease.
    pub fn holders(&self) -> &[PermitHolder] {
        &self.holders
    }
}

/// Returns the first member of the claim of which this is another one: `field` of `field:2`, where
/// the field is `uuid:owner:generation`.
fn named_after(member: &[u8]) -> Option<&str> {
    let (first, number) = str::from_utf8(member).ok()?.rsplit_once(':')?;
    let is_field = first.matches(':').count() >= 2;
    (is_field && !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit()))
        .then_some(first)
}

impl PermitHolder {
    /// Returns the owner as text.
    ///
    /// It is `uuid:owner:generation` for one that uses this crate, and for others the permit id
    /// that Redisson returns, which are the bytes on the server in hex.
    pub fn owner(&self) -> Cow<'_, str> {
        match self.field() {
            Some(field) => field.into(),
            None => self.hex().into(),
        }
    }

    /// Returns its field, if it uses this crate.
    pub(crate) fn field(&self) -> Option<&str> {
        let field = str::from_utf8(&self.owner).ok()?;
        (field.matches(':').count() >= 2).then_some(field)
    }

    /// Returns its bytes in hex.
    pub(crate) fn hex(&self) -> String {
        self.owner
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// Returns how many permits it has of those that are listed.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Returns how much of its lease is left, or `None` if it has no lease.
    ///
    /// A renewal extends it. It includes a tenth of the lease, for clocks that differ.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// Returns the label of its locker, as [`Holder::label`].
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }
}

impl fmt::Debug for PermitHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitHolder")
            .field("owner", &self.owner())
            .field("label", &self.label)
            .field("permits", &self.permits)
            .field("remaining", &self.remaining)
            .finish()
    }
}

impl fmt::Debug for ReadWriteHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadWriteHolder")
            .field("owner", &self.owner())
            .field("label", &self.label)
            .field("count", &self.count)
            .field("remaining", &self.remaining)
            .finish()
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Holder");
        shown.field("owner", &self.owner());
        if let Some(label) = &self.label {
            shown.field("label", label);
        }
        shown
            .field("hold_count", &self.hold_count())
            .field("remaining", &self.remaining());
        if !self.agreed {
            shown.field("by_node", &self.by_node);
        }
        shown.finish()
    }
}

impl fmt::Debug for NodeHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeHolder")
            .field("node", &self.node)
            .field("owner", &self.owner())
            .field("hold_count", &self.hold_count)
            .field("remaining", &self.remaining)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_of_one_claim_are_one_holder() {
        let ms = |ms| Some(Duration::from_millis(ms));
        let members = [
            ("u:o1:7:3", ms(10)),
            ("u:o1:7", ms(30)),
            ("u:o1:7:2", ms(30)),
            ("u:o1:70", ms(20)),
            ("u:o1:71:12", ms(5)),
            ("jvm", None),
            ("4:2", ms(1)),
        ]
        .map(|(member, left)| (member.as_bytes().to_vec(), left));
        let usage = Usage::new(Some(3), 7, members.to_vec());
        let found: Vec<_> = usage
            .holders()
            .iter()
            .map(|it| (it.owner(), it.permits(), it.remaining()))
            .collect();
        assert_eq!(
            found,
            [
                ("343a32".into(), 1, ms(1)),
                ("6a766d".into(), 1, None),
                ("u:o1:7".into(), 3, ms(10)),
                ("u:o1:70".into(), 1, ms(20)),
                ("u:o1:71".into(), 1, ms(5)),
            ]
        );
        assert_eq!(
            (usage.capacity(), usage.free(), usage.taken()),
            (Some(10), 3, 7)
        );
        let over = Usage::new(Some(-2), 3, Vec::new());
        assert_eq!((over.capacity(), over.free()), (Some(1), 0));
        let below = Usage::new(Some(-2), 1, Vec::new());
        assert_eq!((below.capacity(), below.free()), (Some(0), 0));
        let unset = Usage::new(None, 0, Vec::new());
        assert_eq!((unset.capacity(), unset.free()), (None, 0));
    }

    /// Returns the holder if the first of three nodes name these owners.
    fn holder(owners: &[&str]) -> Option<Holder> {
        let node = |(at, owner): (usize, &&str)| NodeHolder {
            node: format!("n{at}").into(),
            owner: owner.as_bytes().to_vec(),
            hold_count: 1,
            remaining: None,
        };
        Holder::of(owners.iter().enumerate().map(node).collect(), 2)
    }

    fn nodes(holder: &Holder) -> Vec<&str> {
        holder.by_node().iter().map(NodeHolder::node).collect()
    }

    #[test]
    fn the_owner_that_most_nodes_name_comes_first() {
        let two = holder(&["b", "a", "a"]).expect("held");
        assert_eq!(
            (two.owner().as_ref(), two.is_agreed(), nodes(&two)),
            ("a", true, vec!["n1", "n2", "n0"])
        );
        let none = holder(&["a", "b", "c"]).expect("held");
        assert_eq!(
            (none.owner().as_ref(), none.is_agreed(), nodes(&none)),
            ("a", false, vec!["n0", "n1", "n2"])
        );
        let one = holder(&["a"]).expect("held");
        assert_eq!(
            (one.owner().as_ref(), one.is_agreed()),
            ("a", false),
            "one of three is no majority"
        );
        assert_eq!(holder(&[]), None);
    }
}
