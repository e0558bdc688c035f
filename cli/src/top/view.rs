//! What `top` shows, and what keys do to it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState, Wrap};

use crate::exit::Failure;
use crate::look::{Seen, shown};
use crate::{ls, show};

/// How many rows PageUp and PageDown go.
const PAGE: isize = 10;

/// Whether it continues after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    GoOn,
    End,
}

/// By what the locks are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sort {
    Name,
    /// The oldest first.
    Age,
    /// The most first.
    Waiters,
    /// The shortest first; those without a lease are last.
    Lease,
}

/// Since when a lock has its holder, as far as this has seen it.
#[derive(Debug)]
struct Age {
    owner: String,
    since: Instant,
    /// It had its holder before.
    is_older: bool,
}

/// The state of the screen.
pub(super) struct View {
    locks: Vec<Seen>,
    ages: HashMap<String, Age>,
    sort: Sort,
    filter: String,
    is_typing: bool,
    /// The lock that is chosen: it stays chosen wherever it moves.
    chosen: Option<String>,
    is_alone: bool,
    table: TableState,
    note: Option<String>,
    /// `None` until there was an answer.
    updated: Option<Instant>,
}

impl View {
    pub(super) fn new() -> Self {
        Self {
            locks: Vec::new(),
            ages: HashMap::new(),
            sort: Sort::Name,
            filter: String::new(),
            is_typing: false,
            chosen: None,
            is_alone: false,
            table: TableState::default(),
            note: None,
            updated: None,
        }
    }

    /// Shows what the servers say; that they do not answer is a note, once they had.
    pub(super) fn update(
        &mut self,
        listed: Result<(Vec<Seen>, Vec<String>), Failure>,
        now: Instant,
    ) -> Result<(), Failure> {
        let (locks, notes) = match listed {
            Ok(listed) => listed,
            Err(failure) if failure.is_unavailable() && self.updated.is_some() => {
                self.note = Some(failure.message().to_owned());
                return Ok(());
            }
            Err(failure) => return Err(failure),
        };
        self.note = notes.into_iter().next();
        let is_first = self.updated.is_none();
        let mut before = std::mem::take(&mut self.ages);
        for seen in &locks {
            let owner = seen.holders.first().map(|holder| holder.owner.clone());
            let owner = owner.unwrap_or_default();
            let same = before.remove(&seen.key).filter(|age| age.owner == owner);
            let age = same.unwrap_or(Age {
                owner,
                since: now,
                is_older: is_first,
            });
            self.ages.insert(seen.key.clone(), age);
        }
        self.locks = locks;
        self.updated = Some(now);
        Ok(())
    }

    /// Returns the locks that are shown, in their order.
    fn rows(&self) -> Vec<&Seen> {
        let has = |seen: &&Seen| seen.key.contains(&self.filter);
        let mut rows: Vec<&Seen> = self.locks.iter().filter(has).collect();
        let since = |seen: &Seen| self.ages.get(&seen.key).map(|age| age.since);
        // They come sorted by name, and stay so where they are equal.
        match self.sort {
            Sort::Name => {}
            Sort::Age => rows.sort_by_key(|seen| since(seen)),
            Sort::Waiters => rows.sort_by_key(|seen| std::cmp::Reverse(seen.waiters.len())),
            Sort::Lease => rows.sort_by_key(|seen| seen.shortest().unwrap_or(Duration::MAX)),
        }
        rows
    }

    fn at(&self, rows: &[&Seen]) -> usize {
        let is_chosen = |seen: &&Seen| Some(&seen.key) == self.chosen.as_ref();
        rows.iter().position(is_chosen).unwrap_or(0)
    }

    /// Goes this many rows down, or up.
    fn go(&mut self, by: isize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        let at = self.at(&rows).saturating_add_signed(by).min(last);
        self.chosen = rows.get(at).map(|seen| seen.key.clone());
    }

    pub(super) fn press(&mut self, key: KeyEvent) -> Next {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Next::End,
                _ => Next::GoOn,
            };
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Next::GoOn;
        }
        match key.code {
            KeyCode::Char('q') => return Next::End,
            KeyCode::Esc if self.is_alone => self.is_alone = false,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Enter => {
                self.go(0);
                self.is_alone = self.chosen.is_some();
            }
            KeyCode::Char('/') => (self.is_alone, self.is_typing) = (false, true),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::PageUp => self.go(-PAGE),
            KeyCode::PageDown => self.go(PAGE),
            KeyCode::Home => self.go(isize::MIN),
            KeyCode::End => self.go(isize::MAX),
            KeyCode::Char('n') => self.sort = Sort::Name,
            KeyCode::Char('a') => self.sort = Sort::Age,
            KeyCode::Char('w') => self.sort = Sort::Waiters,
            KeyCode::Char('l') => self.sort = Sort::Lease,
            _ => {}
        }
        Next::GoOn
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>, now: Instant) {
        let [head, body, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Line::raw(self.head()), head);
        if self.is_alone {
            self.draw_one(frame, body);
        } else {
            self.draw_all(frame, body, now);
        }
        let foot_line = Line::styled(self.foot(), Style::new().add_modifier(Modifier::DIM));
        frame.render_widget(foot_line, foot);
    }

    fn head(&self) -> String {
        let (all, rows) = (self.locks.len(), self.rows().len());
        let sort = match self.sort {
            Sort::Name => "name",
            Sort::Age => "age",
            Sort::Waiters => "waiters",
            Sort::Lease => "lease",
        };
        match (&self.note, self.updated) {
            (Some(note), _) => shown(note),
            (None, None) => "looking for locks".to_owned(),
            (None, Some(_)) if rows < all => format!("locks: {rows} of {all}, by {sort}"),
            (None, Some(_)) => format!("locks: {all}, by {sort}"),
        }
    }

    fn foot(&self) -> String {
        if self.is_typing {
            return format!("/{}_", shown(&self.filter));
        }
        if self.is_alone {
            return "Esc back  q quit".to_owned();
        }
        let keys = "q quit  / filter  Enter one lock  sort: n name  a age  w waiters  l lease";
        match self.filter.as_str() {
            "" => keys.to_owned(),
            filter => format!("/{}  {keys}", shown(filter)),
        }
    }

    fn draw_one(&self, frame: &mut Frame<'_>, area: Rect) {
        let chosen = self.chosen.clone().unwrap_or_default();
        let is_chosen = |seen: &&Seen| seen.key == chosen;
        let text = match self.locks.iter().find(is_chosen) {
            Some(seen) => show::text(seen),
            None => show::text(&Seen {
                key: chosen,
                ..Seen::default()
            }),
        };
        let text = Paragraph::new(text).wrap(Wrap { trim: false });
        frame.render_widget(text, area);
    }

    fn draw_all(&mut self, frame: &mut Frame<'_>, area: Rect, now: Instant) {
        const HEAD: [&str; 6] = ["KEY", "KIND", "AGE", "LEASE", "WAIT", "HELD BY"];
        let rows = self.rows();
        let at = (!rows.is_empty()).then(|| self.at(&rows));
        let right = |text: String| Cell::from(Line::raw(text).right_aligned());
        let rows = rows.iter().map(|seen| {
            let [key, kind, lease, waiters, holders] = ls::row(seen);
            let age = self.ages.get(&seen.key).map(|age| age.shown(now));
            Row::new([
                Cell::from(key),
                Cell::from(kind),
                right(age.unwrap_or_default()),
                right(lease),
                right(waiters),
                Cell::from(holders),
            ])
        });
        let widths = [
            Constraint::Fill(3),
            Constraint::Length(18),
            Constraint::Length(7),
            Constraint::Length(7),
            Constraint::Length(4),
            Constraint::Fill(3),
        ];
        let head = Row::new(HEAD).style(Style::new().add_modifier(Modifier::BOLD));
        let table = Table::new(rows, widths)
            .header(head)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        self.table.select(at);
        frame.render_stateful_widget(table, area, &mut self.table);
    }
}

impl Age {
    fn shown(&self, now: Instant) -> String {
        let seconds = now.saturating_duration_since(self.since).as_secs();
        let older = if self.is_older { ">" } else { "" };
        match seconds {
            0..60 => format!("{older}{seconds}s"),
            60..3_600 => format!("{older}{}m{:02}s", seconds / 60, seconds % 60),
            _ => format!("{older}{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::exit::UNAVAILABLE;
    use crate::look::{Holding, Kind, Waiting};

    fn lock(key: &str, owner: &str, left: u64, waiters: usize) -> Seen {
        Seen {
            key: key.to_owned(),
            kind: Some(Kind::Lock),
            holders: vec![Holding {
                owner: owner.to_owned(),
                label: None,
                count: 1,
                remaining: Some(Duration::from_secs(left)),
            }],
            waiters: vec![Waiting::new("w".to_owned()); waiters],
            ..Seen::default()
        }
    }

    /// Returns the lines of the screen, without the spaces at their ends.
    fn screen(view: &mut View, (width, height): (u16, u16), now: Instant) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| view.draw(frame, now)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let cells = buffer.content.chunks(usize::from(width));
        let line = |cells: &[ratatui::buffer::Cell]| {
            let line: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
            line.trim_end().to_owned()
        };
        cells.map(line).collect()
    }

    fn press(view: &mut View, keys: &str) -> Next {
        keys.chars().fold(Next::GoOn, |_, c| {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                c => KeyCode::Char(c),
            };
            view.press(KeyEvent::new(code, KeyModifiers::NONE))
        })
    }

    fn keys_of(view: &View) -> Vec<&str> {
        view.rows().iter().map(|seen| seen.key.as_str()).collect()
    }

    fn updated(view: &mut View, locks: Vec<Seen>, now: Instant) {
        view.update(Ok((locks, Vec::new())), now).expect("locks");
    }

    #[test]
    fn locks_are_sorted_as_asked() {
        let (mut view, start) = (View::new(), Instant::now());
        let second = Duration::from_secs(1);
        let locks = |of_a: &str| {
            vec![
                lock("a", of_a, 20, 0),
                lock("b", "x", 10, 1),
                lock("c", "x", 30, 2),
            ]
        };
        updated(&mut view, locks("x"), start);
        updated(&mut view, locks("y"), start + second);
        for (keys, sorted) in [
            ("", ["a", "b", "c"]),
            ("a", ["b", "c", "a"]),
            ("w", ["c", "b", "a"]),
            ("l", ["b", "a", "c"]),
            ("n", ["a", "b", "c"]),
        ] {
            press(&mut view, keys);
            assert_eq!(keys_of(&view), sorted, "{keys}");
        }
        let shown = screen(&mut view, (80, 24), start + 62 * second);
        assert_eq!(shown[0], "locks: 3, by name");
        let words = |line: &str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            words(&shown[1]),
            ["KEY", "KIND", "AGE", "LEASE", "WAIT", "HELD", "BY"]
        );
        assert_eq!(words(&shown[2]), ["a", "lock", "1m01s", "20.0s", "y"]);
        assert_eq!(words(&shown[3]), ["b", "lock", ">1m02s", "10.0s", "1", "x"]);
        assert!(shown[23].starts_with("q quit  / filter"), "{shown:?}");
    }

    #[test]
    fn every_size_is_drawn() {
        let (mut view, now) = (View::new(), Instant::now());
        let locks = (0..100).map(|n| lock(&format!("key {n:03}"), &"o".repeat(100), 9, 0));
        updated(&mut view, locks.collect(), now);
        for size in [(80, 24), (200, 50), (20, 5), (1, 1)] {
            screen(&mut view, size, now);
        }
        assert_eq!(press(&mut view, &"j".repeat(60)), Next::GoOn);
        let shown = screen(&mut view, (200, 50), now);
        assert!(
            shown.iter().any(|line| line.starts_with("key 060")),
            "{shown:#?}"
        );
        assert!(shown[2].len() > 100, "{shown:#?}");
    }

    #[test]
    fn one_lock_stays_chosen_wherever_it_goes() {
        let (mut view, now) = (View::new(), Instant::now());
        updated(
            &mut view,
            vec![lock("a", "x", 20, 0), lock("b", "y", 10, 0)],
            now,
        );
        press(&mut view, "j\n");
        updated(&mut view, vec![lock("b", "y", 9, 0)], now);
        let shown = screen(&mut view, (80, 24), now);
        assert_eq!(
            (&*shown[1], &*shown[3]),
            ("key      b", "holder   y, count 1, lease 9.0s")
        );
        updated(&mut view, vec![lock("a", "x", 20, 0)], now);
        assert_eq!(screen(&mut view, (80, 24), now)[2], "kind     free");
        press(&mut view, "\x1b");
        assert!(screen(&mut view, (80, 24), now)[2].starts_with("a  "));
        assert_eq!(press(&mut view, "q"), Next::End);
    }

    #[test]
    fn a_filter_may_have_the_letters_of_keys() {
        let (mut view, now) = (View::new(), Instant::now());
        updated(
            &mut view,
            vec![lock("a", "x", 20, 0), lock("quay", "y", 10, 0)],
            now,
        );
        assert_eq!(press(&mut view, "/qu"), Next::GoOn);
        assert_eq!(keys_of(&view), ["quay"]);
        let shown = screen(&mut view, (80, 24), now);
        assert_eq!(
            (&*shown[0], &*shown[23]),
            ("locks: 1 of 2, by name", "/qu_")
        );
        press(&mut view, "\n");
        assert!(screen(&mut view, (80, 24), now)[23].starts_with("/qu  q quit"));
        press(&mut view, "\x1b");
        assert_eq!(keys_of(&view), ["a", "quay"]);
    }

    #[test]
    fn an_outage_is_a_note_once_there_was_an_answer() {
        let (mut view, now) = (View::new(), Instant::now());
        let away = || Err(Failure::new(UNAVAILABLE, "s1: gone\naway"));
        assert!(view.update(away(), now).is_err());
        updated(&mut view, vec![lock("a", "x", 20, 0)], now);
        assert!(view.update(away(), now).is_ok());
        let shown = screen(&mut view, (80, 24), now);
        assert_eq!(shown[0], "s1: gone\\naway");
        assert!(shown[2].starts_with("a  "));
        updated(&mut view, Vec::new(), now);
        assert_eq!(screen(&mut view, (80, 24), now)[0], "locks: 0, by name");
    }
}
