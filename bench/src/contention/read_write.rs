//! The contests between readers and writers. The first crew of each is lockhound's.

use std::time::Duration;

use super::line::Mix::{self, FewWrites, Locks, OneWriter, Reads, Writes};
use super::outsider::Outsider::Readers;
use super::plan::{Crew, Member, Plan};
use super::process::Program::{self, Distkit, Lockhound, Redisson, Rlock};

const fn of(program: Program, processes: usize, tasks: usize, mix: Mix) -> Member {
    Member {
        program,
        processes,
        lockers: 1,
        tasks,
        mix,
    }
}

const fn plan(
    name: &'static str,
    title: &'static str,
    hold_us: u64,
    crews: &'static [Crew],
) -> Plan {
    Plan {
        name,
        title,
        servers: 1,
        keys: 1,
        hold_us,
        slot: Duration::from_secs(if hold_us > 0 { 2 } else { 1 }),
        crews,
    }
}

const LONE: &[Crew] = &[
    Crew::of("read", &[of(Lockhound, 1, 1, Reads)]),
    Crew::of("write", &[of(Lockhound, 1, 1, Writes)]),
    Crew::of("lock", &[of(Lockhound, 1, 1, Locks)]),
    Crew::of("Redisson, read", &[of(Redisson, 1, 1, Reads)]),
    Crew::of("Redisson, write", &[of(Redisson, 1, 1, Writes)]),
    Crew::of("rlock, read", &[of(Rlock, 1, 1, Reads)]),
    Crew::of("rlock, write", &[of(Rlock, 1, 1, Writes)]),
    Crew::of("distkit, read", &[of(Distkit, 1, 1, Reads)]),
    Crew::of("distkit, write", &[of(Distkit, 1, 1, Writes)]),
];

const READER: &[Member] = &[of(Lockhound, 1, 1, Reads)];
const JVM_READER: &[Member] = &[of(Redisson, 1, 1, Reads)];
const RLOCK_READER: &[Member] = &[of(Rlock, 1, 1, Reads)];
const DISTKIT_READER: &[Member] = &[of(Distkit, 1, 1, Reads)];

/// A reader beside so many others. Redisson's are lockhound's, which are the same to it.
const fn beside(readers: usize) -> [Crew; 4] {
    let of_lockhound = Readers("lockhound", readers);
    [
        Crew::beside(of_lockhound, "read", READER),
        Crew::beside(of_lockhound, "Redisson", JVM_READER),
        Crew::beside(Readers("rlock", readers), "rlock", RLOCK_READER),
        Crew::beside(Readers("distkit", readers), "distkit", DISTKIT_READER),
    ]
}

const BESIDE_60: &[Crew] = &beside(60);
const BESIDE_200: &[Crew] = &beside(200);

const MANY: &[Crew] = &[
    Crew::of("64 readers", &[of(Lockhound, 1, 64, Reads)]),
    Crew::of("1 reader", &[of(Lockhound, 1, 1, Reads)]),
    Crew::of("Redisson", &[of(Redisson, 1, 64, Reads)]),
    Crew::of("rlock", &[of(Rlock, 1, 64, Reads)]),
    Crew::of("distkit", &[of(Distkit, 1, 64, Reads)]),
];

/// The writer is one of the tasks, or is in another process.
const BESIDE_A_WRITER: &[Crew] = &[
    Crew::of("64 tasks", &[of(Lockhound, 1, 65, OneWriter)]),
    Crew::of(
        "writer elsewhere",
        &[of(Lockhound, 1, 64, Reads), of(Lockhound, 1, 1, OneWriter)],
    ),
    Crew::of("Redisson", &[of(Redisson, 1, 65, OneWriter)]),
    Crew::of("rlock", &[of(Rlock, 1, 65, OneWriter)]),
    Crew::of("distkit", &[of(Distkit, 1, 65, OneWriter)]),
];

const PROCESSES: &[Crew] = &[
    Crew::of("lockhound", &[of(Lockhound, 4, 16, FewWrites)]),
    Crew::of("Redisson", &[of(Redisson, 4, 16, FewWrites)]),
    Crew::of("rlock", &[of(Rlock, 4, 16, FewWrites)]),
    Crew::of("distkit", &[of(Distkit, 4, 16, FewWrites)]),
];

pub(crate) const READ_WRITE_PLANS: [Plan; 8] = [
    plan("readwrite/lone", "a lone task, no time", 0, LONE),
    plan("readwrite/60", "beside 60 other readers", 0, BESIDE_60),
    plan("readwrite/200", "beside 200 other readers", 0, BESIDE_200),
    plan(
        "readwrite/64",
        "64 readers of one process, kept for no time",
        0,
        MANY,
    ),
    plan("readwrite/64-1ms", "the same, kept for 1 ms", 1_000, MANY),
    plan(
        "readwrite/writer",
        "64 readers and a writer with pauses of 10 ms, kept for no time",
        0,
        BESIDE_A_WRITER,
    ),
    plan(
        "readwrite/writer-1ms",
        "the same, kept for 1 ms",
        1_000,
        BESIDE_A_WRITER,
    ),
    plan(
        "readwrite/4x16",
        "4 processes of 16 tasks, 95 % reads, kept for 1 ms",
        1_000,
        PROCESSES,
    ),
];
