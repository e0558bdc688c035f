//! The rights that the guide lists for a user who locks names that begin with `app:`.

use super::Server;

/// Returns the ACL rules of the list of the guide whose heading begins with this.
pub fn of(heading: &str) -> Vec<&'static str> {
    let guide = include_str!("../../docs/guide/operating.md");
    let list = guide
        .split(&format!("\n**{heading}"))
        .nth(1)
        .unwrap()
        .split("```")
        .nth(1)
        .unwrap();
    let lines = list.lines().map(|line| line.split('#').next().unwrap());
    let words = lines
        .flat_map(str::split_whitespace)
        .map(|word| word.trim_matches('\''));
    words
        .filter(|word| word.starts_with(['+', '~', '&']))
        .collect()
}

/// Returns the words of each `ACL` command of that list, as the page has them.
pub fn commands(heading: &str) -> Vec<Vec<String>> {
    let guide = include_str!("../../docs/guide/operating.md");
    let list = guide
        .split(&format!("\n**{heading}"))
        .nth(1)
        .unwrap()
        .split("```sh\n")
        .nth(1)
        .unwrap();
    let list = list.split("```").next().unwrap().replace("\\\n", " ");
    let lines = list.lines().map(|line| line.split(" #").next().unwrap());
    let words = |line: &str| {
        line.split_whitespace()
            .map(|word| word.trim_matches('\'').to_owned())
            .collect::<Vec<_>>()
    };
    let commands = lines
        .map(words)
        .filter(|words| words.starts_with(&["redis-cli".to_owned(), "ACL".to_owned()]));
    commands.map(|words| words[1..].to_vec()).collect()
}

/// Gives the user "app" the rights of these lists of the guide, and returns its address.
pub fn user(server: &Server, lists: &[&str]) -> String {
    for list in lists {
        for command in commands(list) {
            server.command::<()>(&command.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
    format!("redis://app:PASSWORD@127.0.0.1:{}", server.port())
}
