//! The contests: which crews contend, for which keys, and how long they keep a lock.

use std::time::Duration;

use super::line::Mix;
use super::outsider::Outsider;
use super::process::Program::{
    self, Lockhound, NodeRedlock, Plain, RedisPy, Redisson, Redsync, Rslock, Unlisted,
};

/// One contest. Each of its crews has a slot in every round.
pub(crate) struct Plan {
    /// Perhaps behind the name of a group and a slash.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) servers: usize,
    pub(crate) keys: usize,
    pub(crate) hold_us: u64,
    pub(crate) slot: Duration,
    pub(crate) crews: &'static [Crew],
}

impl Plan {
    /// Returns whether this is the name of the contest, or of its group.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.name == name || self.group() == Some(name)
    }

    pub(crate) fn group(&self) -> Option<&'static str> {
        self.name.split_once('/').map(|(group, _)| group)
    }
}

/// The processes that contend at the same time.
pub(crate) struct Crew {
    pub(crate) name: &'static str,
    pub(crate) members: &'static [Member],
    /// Who is beside them.
    pub(crate) outsider: Outsider,
}

/// Processes of one program.
pub(crate) struct Member {
    pub(crate) program: Program,
    pub(crate) processes: usize,
    /// Lockers of each process.
    pub(crate) lockers: usize,
    /// Tasks of each locker.
    pub(crate) tasks: usize,
    pub(crate) mix: Mix,
}

impl Crew {
    pub(crate) const fn of(name: &'static str, members: &'static [Member]) -> Self {
        Self {
            name,
            members,
            outsider: Outsider::Nobody,
        }
    }

    pub(crate) const fn beside(
        outsider: Outsider,
        name: &'static str,
        members: &'static [Member],
    ) -> Self {
        Self {
            name,
            members,
            outsider,
        }
    }

    /// Returns whether lockhound is a member.
    pub(crate) fn has_lockhound(&self) -> bool {
        self.members
            .iter()
            .any(|member| matches!(member.program, Lockhound | Plain | Unlisted))
    }
}

const fn tasks(program: Program, tasks: usize) -> Member {
    Member {
        program,
        processes: 1,
        lockers: 1,
        tasks,
        mix: Mix::Locks,
    }
}

const fn processes(program: Program, processes: usize, tasks: usize) -> Member {
    Member {
        program,
        processes,
        lockers: 1,
        tasks,
        mix: Mix::Locks,
    }
}

const fn of_kind(mix: Mix, program: Program, processes: usize, tasks: usize) -> Member {
    Member {
        program,
        processes,
        lockers: 1,
        tasks,
        mix,
    }
}

const fn lockers(program: Program, lockers: usize) -> Member {
    Member {
        program,
        processes: 1,
        lockers,
        tasks: 1,
        mix: Mix::Locks,
    }
}

const ONE_PROCESS: &[Crew] = &[
    Crew::of("1 task", &[tasks(Lockhound, 1)]),
    Crew::of("64 tasks", &[tasks(Lockhound, 64)]),
    Crew::of("1,024 tasks", &[tasks(Lockhound, 1_024)]),
    Crew::of("rslock, 64 tasks", &[tasks(Rslock, 64)]),
    Crew::of("rslock, 1,024 tasks", &[tasks(Rslock, 1_024)]),
];

const FAIR: &[Crew] = &[
    Crew::of("lockhound", &[of_kind(Mix::InTurn, Lockhound, 4, 16)]),
    Crew::of("Redisson", &[of_kind(Mix::InTurn, Redisson, 4, 16)]),
];

const LONE_PERMIT: &[Crew] = &[
    Crew::of("permit", &[of_kind(Mix::Permits, Lockhound, 1, 1)]),
    Crew::of("lock", &[tasks(Lockhound, 1)]),
    Crew::of("Redisson", &[of_kind(Mix::Permits, Redisson, 1, 1)]),
];

const PERMITS: &[Crew] = &[
    Crew::of("lockhound", &[of_kind(Mix::Permits, Lockhound, 1, 64)]),
    Crew::of("Redisson", &[of_kind(Mix::Permits, Redisson, 1, 64)]),
];

const PROCESSES: &[Crew] = &[
    Crew::of("2 processes", &[processes(Lockhound, 2, 4)]),
    Crew::of("8 processes", &[processes(Lockhound, 8, 4)]),
    Crew::of("32 processes", &[processes(Lockhound, 32, 4)]),
];

const fn beside_each(members: &'static [Member]) -> [Crew; 7] {
    [
        Crew::of("nobody", members),
        Crew::beside(Outsider::Visitor, "a visitor", members),
        Crew::beside(
            Outsider::RegularVisitor,
            "a visitor, again and again",
            members,
        ),
        Crew::beside(Outsider::Stopped, "a stopped process", members),
        Crew::beside(Outsider::Subscriber, "a subscriber", members),
        Crew::beside(Outsider::Monitor, "a monitor", members),
        Crew::beside(Outsider::OtherDatabase, "another database", members),
    ]
}

const BESIDE_ONE: &[Crew] = &beside_each(&[tasks(Lockhound, 16)]);
const BESIDE_TWO: &[Crew] = &beside_each(&[processes(Lockhound, 2, 8)]);

pub(crate) const PLANS: [Plan; 18] = [
    Plan {
        name: "one-process",
        title: "tasks of one process on one key, kept for no time",
        servers: 1,
        keys: 1,
        hold_us: 0,
        slot: Duration::from_secs(2),
        crews: ONE_PROCESS,
    },
    Plan {
        name: "one-process-1ms",
        title: "tasks of one process on one key, kept for 1 ms",
        servers: 1,
        keys: 1,
        hold_us: 1_000,
        slot: Duration::from_secs(3),
        crews: ONE_PROCESS,
    },
    Plan {
        name: "processes",
        title: "processes of 4 tasks on one key, kept for no time",
        servers: 1,
        keys: 1,
        hold_us: 0,
        slot: Duration::from_secs(2),
        crews: PROCESSES,
    },
    Plan {
        name: "processes-1ms",
        title: "processes of 4 tasks on one key, kept for 1 ms",
        servers: 1,
        keys: 1,
        hold_us: 1_000,
        // Long enough for each process to have its share.
        slot: Duration::from_secs(10),
        crews: PROCESSES,
    },
    Plan {
        name: "4x16-1ms",
        title: "4 processes of 16 tasks, or threads, on one key, kept for 1 ms",
        servers: 1,
        keys: 1,
        hold_us: 1_000,
        slot: Duration::from_secs(4),
        crews: &[
            Crew::of("lockhound", &[processes(Lockhound, 4, 16)]),
            Crew::of("Redisson", &[processes(Redisson, 4, 16)]),
            Crew::of("rslock", &[processes(Rslock, 4, 16)]),
        ],
    },
    Plan {
        name: "fair/4x16",
        title: "4 processes of 16 tasks, or threads, on one fair lock, kept for no time",
        servers: 1,
        keys: 1,
        hold_us: 0,
        slot: Duration::from_secs(4),
        crews: FAIR,
    },
    Plan {
        name: "fair/4x16-1ms",
        title: "4 processes of 16 tasks, or threads, on one fair lock, kept for 1 ms",
        servers: 1,
        keys: 1,
        hold_us: 1_000,
        slot: Duration::from_secs(4),
        crews: FAIR,
    },
    Plan {
        name: "permits/lone",
        title: "a lone task that takes a permit, or a lock, kept for no time",
        servers: 1,
        keys: 1,
        hold_us: 0,
        slot: Duration::from_secs(2),
        crews: LONE_PERMIT,
    },
    Plan {
        name: "permits/64-1ms",
        title: "64 tasks of one process, or threads, and 8 permits, kept for 1 ms",
        servers: 1,
        keys: 1,
        hold_us: 1_000,
        slot: Duration::from_secs(3),
        crews: PERMITS,
    },
    Plan {
        name: "jvm-beside",
        title: "3 processes and 3 JVMs, of 4 tasks or threads, on one key, kept for 1 ms",
        servers: 1,
        keys: 1,
        hold_us: 1_000,
        slot: Duration::from_secs(5),
        crews: &[Crew::of(
            "lockhound + Redisson",
            &[processes(Lockhound, 3, 4), processes(Redisson, 3, 4)],
        )],
    },
    Plan {
        name: "outsiders/one",
        title: "16 tasks of one process on one key, kept for no time, beside a client that does not take the lock",
        servers: 1,
        keys: 1,
        hold_us: 0,
        slot: Duration::from_secs(3),
        crews: BESIDE_ONE,
    },
    Plan {
        name: "outsiders/two",
        title: "2 processes of 8 tasks on one key, kept for no time, beside a client that does not take the lock",
        servers: 1,
        keys: 1,
        hold_us: 0,
        slot: Duration::from_secs(3),
        crews: BESIDE_TWO,
    },
    Plan {
        name: "outsiders/two-1ms",
        title: "2 processes of 8 tasks on one key, kept for 1 ms, beside a client that does not take the lock",
        servers: 1,
        keys: 1,
        hold_us: 1_000,
        slot: Duration::from_secs(3),
        crews: BESIDE_TWO,
    },
    Plan {
        name: "outsiders/shares",
        title: "processes on one key, kept for 1 ms, beside a client in no list that takes the lock",
        servers: 1,
        keys: 1,
        hold_us: 1_000,
        slot: Duration::from_secs(5),
        crews: &[
            Crew::of(
                "8 tasks + a JVM",
                &[tasks(Lockhound, 8), processes(Redisson, 1, 1)],
            ),
            Crew::of(
                "2 of 8 tasks + a JVM",
                &[processes(Lockhound, 2, 8), processes(Redisson, 1, 1)],
            ),
            Crew::of(
                "2 of 1 task + 1 without lists",
                &[processes(Lockhound, 2, 1), processes(Unlisted, 1, 1)],
            ),
            Crew::of(
                "4 of 4 tasks + 1 without lists",
                &[processes(Lockhound, 4, 4), processes(Unlisted, 1, 4)],
            ),
        ],
    },
    Plan {
        name: "languages",
        title: "4 processes of one task on one key, kept for 1 ms: clients of the plain format, which poll",
        servers: 1,
        keys: 1,
        hold_us: 1_000,
        slot: Duration::from_secs(3),
        crews: &[
            Crew::of("lockhound, plain", &[processes(Plain, 4, 1)]),
            Crew::of("redis-py", &[processes(RedisPy, 4, 1)]),
            Crew::of("node-redlock", &[processes(NodeRedlock, 4, 1)]),
            Crew::of("redsync", &[processes(Redsync, 4, 1)]),
        ],
    },
    Plan {
        name: "10,000-on-100",
        title: "10,000 tasks of one process on 100 keys, kept for no time",
        servers: 1,
        keys: 100,
        hold_us: 0,
        slot: Duration::from_secs(3),
        crews: &[
            Crew::of("lockhound", &[tasks(Lockhound, 10_000)]),
            Crew::of("rslock", &[tasks(Rslock, 10_000)]),
        ],
    },
    Plan {
        name: "16-on-16",
        title: "16 processes on 16 keys, a task of each on every one, kept for 1 ms",
        servers: 1,
        keys: 16,
        hold_us: 1_000,
        slot: Duration::from_secs(4),
        crews: &[
            Crew::of("lockhound", &[processes(Lockhound, 16, 16)]),
            Crew::of("rslock", &[processes(Rslock, 16, 16)]),
        ],
    },
    Plan {
        name: "quorum-20",
        title: "lockers of one task on one key over three servers, kept for no time",
        servers: 3,
        keys: 1,
        hold_us: 0,
        slot: Duration::from_secs(3),
        crews: &[
            Crew::of("1 alone", &[lockers(Lockhound, 1)]),
            Crew::of("20 contenders", &[lockers(Lockhound, 20)]),
            Crew::of("rslock, 20 contenders", &[lockers(Rslock, 20)]),
        ],
    },
];
