//! The orders of a contender, one per line.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::library::{Cannot, Failure};

/// An order. The crate's documentation defines each.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Pairs { tasks: u64, span: Duration },
    Enter(Enter),
    Take { key: String },
    Free,
    Hold { count: u64, lease: Duration },
    Release,
    Lose { key: String, lease: Duration },
    Nest { times: u64 },
    First { name: String, count: u64 },
    Replay { name: String, count: u64 },
    Duplicate { name: String, count: u64, body: Duration },
    Usage,
}

/// Tasks that contend for one key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Enter {
    pub(crate) key: String,
    pub(crate) tasks: u64,
    pub(crate) body: Duration,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) file: PathBuf,
}

impl FromStr for Order {
    type Err = Failure;

    fn from_str(line: &str) -> Result<Self, Failure> {
        let millis = |word: &str| Ok::<_, Failure>(Duration::from_millis(word.parse()?));
        Ok(match *line.split(' ').collect::<Vec<_>>() {
            ["pairs", tasks, span] => Self::Pairs { tasks: tasks.parse()?, span: millis(span)? },
            ["enter", key, tasks, body, start, end, ref file @ ..] if !file.is_empty() => {
                Self::Enter(Enter {
                    key: key.to_owned(),
                    tasks: tasks.parse()?,
                    body: Duration::from_micros(body.parse()?),
                    start: start.parse()?,
                    end: end.parse()?,
                    file: file.join(" ").into(),
                })
            }
            ["take", key] => Self::Take { key: key.to_owned() },
            ["free"] => Self::Free,
            ["hold", count, lease] => Self::Hold { count: count.parse()?, lease: millis(lease)? },
            ["release"] => Self::Release,
            ["lose", key, lease] => Self::Lose { key: key.to_owned(), lease: millis(lease)? },
            ["nest", times] => Self::Nest { times: times.parse()? },
            ["first", name, count] => Self::First { name: name.to_owned(), count: count.parse()? },
            ["replay", name, count] => Self::Replay { name: name.to_owned(), count: count.parse()? },
            ["duplicate", name, count, body] => Self::Duplicate {
                name: name.to_owned(),
                count: count.parse()?,
                body: Duration::from_micros(body.parse()?),
            },
            ["usage"] => Self::Usage,
            _ => return Err(Cannot::because(format!("unknown order `{line}`"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_name_may_contain_spaces() {
        let order: Order = "enter hot 64 1000 7 9 /tmp/a b/notes".parse().expect("an order");

        let Order::Enter(enter) = order else { panic!("{order:?}") };
        assert_eq!(enter.file, PathBuf::from("/tmp/a b/notes"));
        assert_eq!((enter.tasks, enter.body, enter.start, enter.end), (64, Duration::from_millis(1), 7, 9));
    }

    #[test]
    fn an_unknown_order_is_unsupported() {
        for line in ["", "dance 7", "pairs 1", "enter hot 64 0 7 9", "free it"] {
            let refused = line.parse::<Order>().expect_err(line);
            assert!(refused.is::<Cannot>(), "{line}: {refused}");
        }
    }

    #[test]
    fn an_invalid_number_is_an_error() {
        let refused = "pairs many 150".parse::<Order>().expect_err("`many` is no number");

        assert!(!refused.is::<Cannot>(), "{refused}");
    }
}
