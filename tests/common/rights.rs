//! The rights that the guide lists for a user who locks names that begin with `app:`.

/// Returns the ACL rules of the list of the guide whose heading begins with this.
pub fn of(heading: &str) -> Vec<&'static str> {
    let guide = include_str!("../../docs/guide/operating.md");
    let list = guide.split(&format!("\n**{heading}")).nth(1).unwrap().split("```").nth(1).unwrap();
    let lines = list.lines().map(|line| line.split('#').next().unwrap());
    let words = lines.flat_map(str::split_whitespace).map(|word| word.trim_matches('\''));
    words.filter(|word| word.starts_with(['+', '~', '&'])).collect()
}
