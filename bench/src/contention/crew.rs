//! The processes that contend in the same slot, and the servers' counts for that slot.

use std::time::Duration;

use super::line::{Mix, Order, now};
use super::plan::{Crew, Plan};
use super::process::Process;
use super::round::{Round, Said, Served};
use crate::Failure;
use crate::connection::Connection;

/// From the order to its beginning. By then the last process has read it.
const NOTICE: Duration = Duration::from_millis(50);
/// All contend for this long before and after the part that counts, so that it includes neither
/// start nor end.
const LEAD: Duration = Duration::from_millis(250);
/// Longer, since a JVM compiles code that runs often.
const WARM_UP_OF_JVM: Duration = Duration::from_secs(3);
const WARM_UP: Duration = Duration::from_millis(250);

/// A crew whose processes run.
pub(crate) struct Running {
    crew: &'static Crew,
    /// The processes of each member.
    processes: Vec<Vec<Process>>,
    /// The servers.
    urls: Vec<String>,
    slots: usize,
}

impl Crew {
    /// Returns whether the crew needs a program that may be missing.
    pub(crate) fn is_foreign(&self) -> bool {
        self.members
            .iter()
            .any(|member| member.program.is_foreign())
    }
}

impl Running {
    /// # Errors
    /// For a foreign crew, the reason why it cannot run here.
    pub(crate) fn start(crew: &'static Crew, urls: &[String]) -> Result<Self, Failure> {
        let mut processes = Vec::with_capacity(crew.members.len());
        for member in crew.members {
            let start = |_| Process::start(member.program, member.lockers, member.tasks, urls);
            processes.push(
                (0..member.processes)
                    .map(start)
                    .collect::<Result<Vec<_>, _>>()?,
            );
        }
        for process in processes.iter_mut().flatten() {
            process.ready()?;
        }
        Ok(Self {
            crew,
            processes,
            urls: urls.to_vec(),
            slots: 0,
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.crew.name
    }

    pub(crate) fn has_lockhound(&self) -> bool {
        self.crew.has_lockhound()
    }

    pub(crate) fn warm_up(
        &mut self,
        plan: &Plan,
        controls: &mut [Connection],
    ) -> Result<(), Failure> {
        let time = if self.crew.is_foreign() {
            WARM_UP_OF_JVM
        } else {
            WARM_UP
        };
        self.slot(plan, time, controls).map(drop)
    }

    /// Has all processes contend for this time, for new keys.
    pub(crate) fn slot(
        &mut self,
        plan: &Plan,
        time: Duration,
        controls: &mut [Connection],
    ) -> Result<Round, Failure> {
        // The names of keys must have no spaces and no commas, which separate words and keys in a
        // line.
        let prefix = format!("contention:{}:{}:{}", plan.name, self.crew.name, self.slots)
            .replace([' ', ','], "");
        self.slots += 1;
        let _outsider = self
            .crew
            .outsider
            .start(&self.urls[0], &format!("{prefix}:0"))?;
        let begin = now() + nanos(NOTICE);
        let (from, to) = (begin + nanos(LEAD), begin + nanos(LEAD + time));
        let keys = (0..plan.keys)
            .map(|key| format!("{prefix}:{key}"))
            .collect();
        let mut order = Order {
            keys,
            begin,
            end: to + nanos(LEAD),
            hold_us: plan.hold_us,
            mix: Mix::Locks,
        };
        for (member, processes) in self.crew.members.iter().zip(&mut self.processes) {
            order.mix = member.mix;
            for process in processes {
                process.tell(&order)?;
            }
        }
        sleep_until(from);
        for control in &mut *controls {
            control.reset_calls()?;
        }
        let cpu_before = cpu(controls)?;
        let start = now();
        sleep_until(to);
        // If this process woke late, the slot was longer, as the servers' counts are.
        let slot = start..now().min(order.end);
        let cpu_seconds = cpu(controls)? - cpu_before;
        let commands = self
            .crew
            .members
            .iter()
            .flat_map(|member| member.program.commands());
        let commands: Vec<&str> = commands.copied().collect();
        let scripts = controls
            .iter_mut()
            .map(|control| control.count(&commands))
            .sum::<Result<f64, _>>()?;
        let said = self.hear()?;
        Ok(Round::of(
            &said,
            plan.keys,
            &slot,
            Served {
                scripts,
                cpu_seconds,
            },
        ))
    }

    fn hear(&mut self) -> Result<Vec<Said>, Failure> {
        let mut said = Vec::with_capacity(self.processes.len());
        for (member, processes) in self.crew.members.iter().zip(&mut self.processes) {
            let processes = processes
                .iter_mut()
                .map(Process::hear)
                .collect::<Result<_, _>>()?;
            said.push(Said {
                tasks: member.lockers * member.tasks,
                processes,
            });
        }
        Ok(said)
    }
}

fn cpu(controls: &mut [Connection]) -> Result<f64, Failure> {
    Ok(controls
        .iter_mut()
        .map(Connection::cpu)
        .sum::<Result<f64, _>>()?)
}

fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

fn sleep_until(time: u64) {
    std::thread::sleep(Duration::from_nanos(time.saturating_sub(now())));
}
