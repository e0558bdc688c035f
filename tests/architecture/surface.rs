//! The public surface of a crate: what its users can name, a line for each item.
//!
//! Lines are made of the words of the source, so types are written as they are there. Not seen are
//! auto traits, which other tests assert, impls that a macro makes, other than derives, and what
//! other crates' items that are re-exported consist of.

use std::collections::{BTreeMap, BTreeSet};

use super::{Kind, Source, Token, absolute, closing, is_use, item_end, use_tree};

/// Returns the surface of the crate of this name, sorted by path.
pub(super) fn surface(name: &str, sources: &[Source]) -> Vec<String> {
    let mut listing = Listing {
        files: files(sources),
        lines: BTreeSet::new(),
        public: BTreeMap::new(),
    };
    listing.module(&[], name, &[]);
    listing.impls();
    listing.lines.into_iter().map(|line| line.text).collect()
}

/// Returns how two surfaces differ: `-` before a line that only the first has, `+` before one that
/// only the second has.
pub(super) fn difference(before: &[String], after: &[String]) -> Vec<String> {
    let only = |sign: char, these: &[String], others: &[String]| {
        let lines = these.iter().filter(|line| !others.contains(line));
        lines.map(|line| format!("{sign} {line}")).collect()
    };
    let mut lines: Vec<String> = only('-', before, after);
    lines.extend::<Vec<String>>(only('+', after, before));
    lines
}

/// Returns the modules that a crate consists of.
fn files(sources: &[Source]) -> Vec<File<'_>> {
    let mut found = Vec::new();
    if let Some(root) = sources.iter().find(|source| source.is_root()) {
        add_module(sources, &root.tokens, Vec::new(), Vec::new(), &mut found);
    }
    found
}

/// Adds a module, and those in it.
fn add_module<'a>(
    sources: &'a [Source],
    tokens: &'a [Token],
    place: Vec<String>,
    conditions: Vec<String>,
    found: &mut Vec<File<'a>>,
) {
    let items = items(tokens);
    for item in items.iter().filter(|item| item.word == "mod") {
        let place = [&place[..], std::slice::from_ref(&item.name)].concat();
        let file = sources.iter().find(|source| source.place() == place);
        // One that is missing is only there for tests.
        if let Some(tokens) = item.body.or(file.map(|file| &file.tokens[..])) {
            let conditions = [&conditions[..], &item.conditions].concat();
            add_module(sources, tokens, place, conditions, found);
        }
    }
    found.push(File {
        place,
        conditions,
        items,
    });
}

/// A module, in a file of its own or not.
struct File<'a> {
    place: Vec<String>,
    /// When it is compiled.
    conditions: Vec<String>,
    items: Vec<Item<'a>>,
}

/// A line, in the order of the listing: by the path, and what a type is before what it implements.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    path: String,
    rank: u8,
    text: String,
}

struct Listing<'a> {
    files: Vec<File<'a>>,
    lines: BTreeSet<Line>,
    /// The types and traits that users can name, by their names in the source: the paths.
    public: BTreeMap<String, BTreeSet<String>>,
}

impl Listing<'_> {
    fn add(&mut self, path: &str, rank: u8, conditions: &[String], text: &str) {
        let conditions: BTreeSet<&String> = conditions.iter().collect();
        let mut line: String = conditions.iter().map(|cfg| format!("#[{cfg}] ")).collect();
        line += text;
        self.lines.insert(Line {
            path: path.to_owned(),
            rank,
            text: line,
        });
    }

    fn file(&self, place: &[String]) -> Option<usize> {
        self.files.iter().position(|file| file.place == place)
    }

    /// Lists what a module exports under this path.
    fn module(&mut self, place: &[String], path: &str, conditions: &[String]) {
        let Some(file) = self.file(place) else { return };
        for at in 0..self.files[file].items.len() {
            let item = &self.files[file].items[at];
            if !item.is_public {
                continue;
            }
            let conditions = [conditions, &item.conditions].concat();
            match item.word {
                "use" => {
                    for target in item.imports() {
                        self.export(place, &target, path, &conditions);
                    }
                }
                _ => self.define(file, at, path, &conditions),
            }
        }
    }

    /// Lists what a `pub use` of a module names.
    fn export(&mut self, place: &[String], target: &[String], path: &str, conditions: &[String]) {
        let (name, within) = target.split_last().expect("a path");
        let child = |place: &[String]| [place, within].concat();
        let within = match absolute(within, place) {
            Some(module) => Some(module),
            None => self.file(&child(place)).map(|_| child(place)),
        };
        let Some(file) = within.and_then(|module| self.file(&module)) else {
            let text = format!("pub use {path}::{name} = {}", target.join("::"));
            return self.add(&format!("{path}::{name}"), 0, conditions, &text);
        };
        let found = self.files[file]
            .items
            .iter()
            .position(|item| item.is_named() && item.name == *name);
        let conditions = [conditions, &self.files[file].conditions].concat();
        if let Some(at) = found {
            let conditions = [&conditions[..], &self.files[file].items[at].conditions].concat();
            return self.define(file, at, path, &conditions);
        }
        let place = self.files[file].place.clone();
        let imports = self.files[file].items.iter().flat_map(Item::imports);
        let next = imports
            .into_iter()
            .find(|import| import.last() == Some(name) && import != target);
        let next = next.unwrap_or_else(|| panic!("{} is nowhere", target.join("::")));
        self.export(&place, &next, path, &conditions);
    }

    /// Lists an item under this path.
    fn define(&mut self, file: usize, at: usize, path: &str, conditions: &[String]) {
        let item = &self.files[file].items[at];
        let own = format!("{path}::{}", item.name);
        let head = format!("{}pub {}", item.marks(), item.declaration(&own));
        let (word, name, body) = (item.word, item.name.clone(), item.body);
        let (derived, is_type) = (item.derived.clone(), item.is_type());
        let members = match word {
            "struct" => item.fields(),
            "enum" => variants(body.unwrap_or_default()),
            "trait" => trait_items(body.unwrap_or_default()),
            _ => Vec::new(),
        };
        self.add(&own, 0, conditions, &head);
        for (name, what) in members {
            let member = format!("{own}::{name}");
            let text = what.replace("{}", &member);
            self.add(&member, 0, conditions, &text);
        }
        for name in derived {
            self.add(&own, 1, conditions, &format!("impl {name} for {own}"));
        }
        match word {
            "mod" => {
                let place = [&self.files[file].place[..], &[name]].concat();
                self.module(&place, &own, conditions);
            }
            _ if is_type => {
                self.public.entry(name).or_default().insert(own);
            }
            _ => {}
        }
    }

    /// Lists what all impls give to the types that are listed.
    fn impls(&mut self) {
        let all = self.files.iter().flat_map(|file| &file.items);
        let types = all.filter(|item| item.is_type());
        let known: BTreeSet<String> = types.map(|item| item.name.clone()).collect();
        let mut found = Vec::new();
        for file in &self.files {
            for item in file.items.iter().filter(|item| item.word == "impl") {
                let header = Header::of(item.head);
                let conditions = [&file.conditions[..], &item.conditions].concat();
                found.extend(match header.of {
                    None => self.methods(&header, item, &conditions),
                    // An impl that names what is private is not for users.
                    Some(_) if item.words().any(|word| self.is_private(&known, word)) => Vec::new(),
                    Some(of) => self.implements(&header, of, item, &conditions),
                });
            }
        }
        for Found {
            path,
            rank,
            conditions,
            text,
        } in found
        {
            self.add(&path, rank, &conditions, &text);
        }
    }

    fn is_private(&self, known: &BTreeSet<String>, word: &str) -> bool {
        known.contains(word) && !self.public.contains_key(word)
    }

    /// Returns the public methods of an impl without a trait.
    fn methods(&self, header: &Header<'_>, item: &Item<'_>, conditions: &[String]) -> Vec<Found> {
        let mut found = Vec::new();
        for (path, target) in self.targets(header.target) {
            for member in items(item.body.unwrap_or_default()) {
                if member.is_public {
                    let shown = format!("{target}::{}", member.name);
                    let declared = member.marks() + "pub " + &member.declaration(&shown);
                    found.push(Found {
                        path: format!("{path}::{}", member.name),
                        rank: 0,
                        conditions: [conditions, &member.conditions].concat(),
                        text: declared + &after(header.bounds),
                    });
                }
            }
        }
        found
    }

    /// Returns that an impl implements a trait, if it concerns a type or a trait that is listed.
    fn implements(
        &self,
        header: &Header<'_>,
        of: &[Token],
        item: &Item<'_>,
        conditions: &[String],
    ) -> Vec<Found> {
        let mut targets = self.targets(header.target);
        if targets.is_empty() && item.words().any(|word| self.public.contains_key(word)) {
            let target = render(header.target);
            targets.push((format!("impl {target}"), target));
        }
        let members = items(item.body.unwrap_or_default());
        let types = members.iter().filter(|member| member.word == "type");
        let types: String = types.map(|member| render(member.head) + "; ").collect();
        let types = match types.as_str() {
            "" => types,
            _ => format!(" {{ {types}}}"),
        };
        let found = |(path, target)| {
            let (generics, of) = (render(header.generics), render(last_segment(of)));
            Found {
                path,
                rank: 1,
                conditions: conditions.to_vec(),
                text: format!(
                    "impl{generics} {of} for {target}{}{types}",
                    after(header.bounds)
                ),
            }
        };
        targets.into_iter().map(found).collect()
    }

    /// Returns the paths of the type that an impl is for, each with what the impl calls it then.
    fn targets(&self, target: &[Token]) -> Vec<(String, String)> {
        let Some((name, paths)) =
            target_name(target).and_then(|name| self.public.get_key_value(name))
        else {
            return Vec::new();
        };
        let shown = render(target);
        let shown = |path: &String| (path.clone(), shown.replacen(name, path, 1));
        paths.iter().map(shown).collect()
    }
}

/// A line that an impl makes.
struct Found {
    path: String,
    rank: u8,
    conditions: Vec<String>,
    text: String,
}

/// An item, or a member of a trait or an impl.
struct Item<'a> {
    conditions: Vec<String>,
    /// What else is said of it that users notice.
    marks: Vec<String>,
    derived: Vec<String>,
    is_public: bool,
    /// What it is: `fn`, `struct`, `use` ..
    word: &'a str,
    /// Empty for an impl.
    name: String,
    /// Where the word is in the head.
    at: usize,
    /// Everything from behind the visibility to the body, the value or the end.
    head: &'a [Token],
    /// What is in its braces.
    body: Option<&'a [Token]>,
}

/// Splits the text of a module, an impl or a trait into items.
fn items(tokens: &[Token]) -> Vec<Item<'_>> {
    let mut found = Vec::new();
    let mut attributes = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if token.is_doc() || token.is(";") {
            at += 1;
        } else if token.is("#") {
            let is_inner = tokens.get(at + 1).is_some_and(|next| next.is("!"));
            let open = at + 1 + usize::from(is_inner);
            let end = closing(tokens, open);
            if !is_inner {
                attributes.push(&tokens[open + 1..end]);
            }
            at = end + 1;
        } else {
            let end = item_end(tokens, at).max(at + 1);
            found.push(Item::new(&attributes, &tokens[at..end]));
            attributes.clear();
            at = end;
        }
    }
    found
}

impl<'a> Item<'a> {
    fn new(attributes: &[&[Token]], tokens: &'a [Token]) -> Self {
        let behind = visibility(tokens);
        let is_public = behind == 1;
        let tokens = &tokens[behind..];
        let is = |at: usize, words: &[&str]| {
            let token = tokens.get(at);
            token.is_some_and(|token| words.iter().any(|word| token.is(word)))
        };
        let mut at = 0;
        while is(at, &["async", "unsafe", "extern"])
            || is(at, &["const"]) && is(at + 1, &["fn", "async", "unsafe"])
        {
            at += 1;
        }
        let word = tokens.get(at).map_or("", |token| &token.text);
        let mut end = at;
        let mut body = None;
        while let Some(token) = tokens.get(end) {
            let has_value = ["const", "static"].contains(&word);
            if token.is(";") || has_value && token.is("=") {
                break;
            } else if token.is("{") && !is_use(tokens, at) {
                body = Some(&tokens[end + 1..closing(tokens, end)]);
                break;
            }
            let opens = ["(", "[", "{"].iter().any(|sign| token.is(sign));
            end = if opens { closing(tokens, end) } else { end } + 1;
        }
        let texts = attributes.iter().map(|attribute| render(attribute));
        let derived = attributes.iter().flat_map(|attribute| derives(attribute));
        let is_mark = |text: &String| {
            let marks = ["non_exhaustive", "deprecated", "doc(hidden)"];
            marks.iter().any(|mark| text.starts_with(mark))
        };
        Self {
            conditions: texts.clone().filter(|it| it.starts_with("cfg(")).collect(),
            marks: texts.filter(is_mark).collect(),
            derived: derived.collect(),
            is_public,
            word,
            name: match word {
                "impl" => String::new(),
                _ => tokens
                    .get(at + 1)
                    .map_or("", |token| &token.text)
                    .to_owned(),
            },
            at,
            head: &tokens[..end],
            body,
        }
    }

    /// Returns whether it is something that a `use` can name.
    fn is_named(&self) -> bool {
        let words = [
            "struct", "enum", "trait", "type", "fn", "const", "static", "mod",
        ];
        words.contains(&self.word)
    }

    fn is_type(&self) -> bool {
        ["struct", "enum", "trait", "type"].contains(&self.word)
    }

    /// Returns the words of its head.
    fn words(&self) -> impl Iterator<Item = &str> {
        let words = self.head.iter().filter(|token| token.kind == Kind::Word);
        words.map(|token| token.text.as_str())
    }

    fn marks(&self) -> String {
        self.marks
            .iter()
            .map(|mark| format!("#[{mark}] "))
            .collect()
    }

    /// Returns what declares it, with a path in place of its name.
    fn declaration(&self, path: &str) -> String {
        let behind = self.head.get(self.at + 2..).unwrap_or_default();
        let fields = behind.iter().position(|token| token.is("("));
        let behind = match fields {
            Some(open) if self.word == "struct" => &behind[..open],
            _ => behind,
        };
        let space = if behind
            .first()
            .is_some_and(|token| token.kind == Kind::Word || token.is("="))
        {
            " "
        } else {
            ""
        };
        let words = render(&self.head[..=self.at]);
        format!("{words} {path}{space}{}", render(behind))
    }

    /// Returns the paths that a `use` names.
    fn imports(&self) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        if self.word == "use" {
            let unread = self
                .head
                .iter()
                .find(|t| self.is_public && (t.is("as") || t.is("*")));
            assert_eq!(unread, None, "name what is exported, by its own name");
            use_tree(self.head, self.at + 1, &[], &mut found);
        }
        found.into_iter().map(|(_, path)| path).collect()
    }

    /// Returns the public fields of a struct.
    fn fields(&self) -> Vec<(String, String)> {
        let tuple = self.head.iter().position(|token| token.is("("));
        let fields = match (self.body, tuple) {
            (Some(body), _) => body,
            (None, Some(open)) => &self.head[open + 1..closing(self.head, open)],
            (None, None) => &[],
        };
        let public = |(at, field): (usize, &[Token])| {
            let field = without_attributes(field);
            let shown = &field[visibility(field)..];
            (visibility(field) == 1).then(|| match self.body {
                Some(_) => (
                    shown[0].text.clone(),
                    format!("pub {{}}: {}", render(&shown[2..])),
                ),
                None => (at.to_string(), format!("pub {{}}: {}", render(shown))),
            })
        };
        divided(fields)
            .into_iter()
            .enumerate()
            .filter_map(public)
            .collect()
    }
}

/// Returns the variants of an enum, `{}` in place of the path of each.
fn variants(body: &[Token]) -> Vec<(String, String)> {
    let line = |variant: &[Token]| {
        let marks = match variant.iter().any(|token| token.is("non_exhaustive")) {
            true => "#[non_exhaustive] ",
            false => "",
        };
        let bare = without_attributes(variant);
        let name = bare[0].text.clone();
        let space = if bare.get(1).is_some_and(|token| token.is("{")) {
            " "
        } else {
            ""
        };
        // Attributes and docs of fields are not for users.
        let fields: Vec<Token> = clean(&bare[1..]);
        (name, format!("{marks}pub {{}}{space}{}", render(&fields)))
    };
    divided(body).into_iter().map(line).collect()
}

/// Returns the items of a trait.
fn trait_items(body: &[Token]) -> Vec<(String, String)> {
    let line = |item: &Item<'_>| {
        let provided = if item.body.is_some() { " { .. }" } else { "" };
        let text = item.marks() + &item.declaration("{}") + provided;
        (item.name.clone(), text)
    };
    items(body).iter().map(line).collect()
}

/// What stands before the braces of an impl.
struct Header<'a> {
    generics: &'a [Token],
    /// The trait.
    of: Option<&'a [Token]>,
    target: &'a [Token],
    /// From `where` on.
    bounds: &'a [Token],
}

impl<'a> Header<'a> {
    fn of(head: &'a [Token]) -> Self {
        let start = match head.get(1) {
            Some(token) if token.is("<") => angle_end(head, 1),
            _ => 1,
        };
        let (mut at, mut of, mut from) = (start, None, start);
        while at < head.len() && !head[at].is("where") {
            let is_for = head[at].is("for") && !head.get(at + 1).is_some_and(|next| next.is("<"));
            if is_for {
                of = Some(&head[start..at]);
                from = at + 1;
            }
            at = if head[at].is("<") {
                angle_end(head, at)
            } else {
                at + 1
            };
        }
        Self {
            generics: &head[1..start],
            of,
            target: &head[from..at],
            bounds: &head[at..],
        }
    }
}

/// Returns where what the angle bracket opens is over.
fn angle_end(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        if token.is("<") {
            depth += 1;
        } else if token.is(">") {
            depth -= 1;
            if depth == 0 {
                return at + 1;
            }
        }
    }
    tokens.len()
}

/// Returns the name of the type that an impl is for.
fn target_name(target: &[Token]) -> Option<&str> {
    let start = target
        .iter()
        .position(|token| token.kind == Kind::Word && !["dyn", "mut"].contains(&&*token.text))?;
    last_segment(&target[start..])
        .first()
        .map(|token| &*token.text)
}

/// Returns a path from its last segment on.
fn last_segment(path: &[Token]) -> &[Token] {
    let mut at = 0;
    while path.get(at + 1).is_some_and(|token| token.is("::")) {
        at += 2;
    }
    &path[at..]
}

/// Returns how long the visibility is that stands here: 1 for `pub`, 0 for none.
fn visibility(tokens: &[Token]) -> usize {
    let is = |at: usize, sign: &str| tokens.get(at).is_some_and(|token| token.is(sign));
    match (is(0, "pub"), is(1, "(")) {
        // A field of a tuple may have a type in parentheses: none has.
        (true, true) => closing(tokens, 1) + 1,
        (true, false) => 1,
        (false, _) => 0,
    }
}

/// Returns what a `derive` makes.
fn derives(attribute: &[Token]) -> Vec<String> {
    if !attribute.first().is_some_and(|token| token.is("derive")) {
        return Vec::new();
    }
    let names = divided(&attribute[2..attribute.len() - 1]);
    let made = |name: &&[Token]| match render(name).as_str() {
        "thiserror::Error" => vec!["Display".to_owned(), "Error".to_owned()],
        _ => vec![render(last_segment(name))],
    };
    names.iter().flat_map(made).collect()
}

/// Divides a list at its commas, and leaves out empty parts.
fn divided(tokens: &[Token]) -> Vec<&[Token]> {
    let (mut parts, mut start, mut at) = (Vec::new(), 0, 0);
    while at < tokens.len() {
        if tokens[at].is(",") {
            parts.push(&tokens[start..at]);
            start = at + 1;
        }
        let opens = ["(", "[", "{"].iter().any(|sign| tokens[at].is(sign));
        at = match tokens[at].is("<") {
            true => angle_end(tokens, at),
            false if opens => closing(tokens, at) + 1,
            false => at + 1,
        };
    }
    parts.push(&tokens[start.min(tokens.len())..]);
    parts.retain(|part| !part.is_empty());
    parts
}

/// Leaves out the docs and attributes before an item.
fn without_attributes(tokens: &[Token]) -> &[Token] {
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if token.is_doc() {
            at += 1;
        } else if token.is("#") {
            at = closing(tokens, at + 1) + 1;
        } else {
            break;
        }
    }
    &tokens[at..]
}

/// Leaves out all docs and attributes.
fn clean(tokens: &[Token]) -> Vec<Token> {
    let (mut kept, mut at) = (Vec::new(), 0);
    while let Some(token) = tokens.get(at) {
        let rest = without_attributes(&tokens[at..]);
        if rest.len() < tokens.len() - at {
            at = tokens.len() - rest.len();
        } else {
            kept.push(token.clone());
            at += 1;
        }
    }
    kept
}

fn after(bounds: &[Token]) -> String {
    if bounds.is_empty() {
        String::new()
    } else {
        format!(" {}", render(bounds))
    }
}

/// Writes tokens as rustfmt does, in one line. Leaves out a `mut` of a parameter, which callers do
/// not notice, and a comma before a bracket that closes.
fn render(tokens: &[Token]) -> String {
    let is = |at: Option<usize>, signs: &[&str]| {
        let token = at.and_then(|at| tokens.get(at));
        token.is_some_and(|token| signs.iter().any(|sign| token.is(sign)))
    };
    let mut text = String::new();
    let mut last: Option<usize> = None;
    for at in 0..tokens.len() {
        let before = at.checked_sub(1);
        let next = Some(at + 1);
        let is_of_parameter = is(Some(at), &["mut"]) && is(before, &["(", ","]);
        let is_last_comma =
            is(Some(at), &[","]) && (next == Some(tokens.len()) || is(next, &[")", ">", "]", "}"]));
        if is_of_parameter || is_last_comma || tokens[at].is_doc() {
            continue;
        }
        let ends_lifetime = last.is_some_and(|last| is(last.checked_sub(1), &["'"]));
        let is_word = |at: usize| matches!(tokens[at].kind, Kind::Word | Kind::Literal);
        let spaced = ["->", "=>", "=", "+", "{", "}", "|"];
        let space = last.is_some_and(|last| {
            let (here, last) = (at, Some(last));
            is(Some(here), &spaced)
                || is(last, &spaced)
                || is(last, &[",", ":", ";"])
                || is_word(here) && is_word(last.expect("it is there"))
                || is_word(here) && is(last, &[">", ")", "]", "?"])
                || is(Some(here), &["&", "'", "?"]) && is_word(last.expect("it is there"))
                || is(Some(here), &["(", "[", "<"]) && ends_lifetime
                || is(Some(here), &["("]) && is(last, &["dyn", "impl", "as", "mut"])
        });
        if space {
            text.push(' ');
        }
        text += &tokens[at].text;
        last = Some(at);
    }
    text
}
