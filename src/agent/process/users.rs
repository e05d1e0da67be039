//! User and group names, from `/etc/passwd` and `/etc/group`.

use super::spawn::Ids;
use std::fs;
use std::io;

/// Largest user database that is read, 16 MiB.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The texts of the two databases.
pub(crate) struct Users {
    passwd: String,
    group: String,
}

impl Users {
    pub(crate) fn read() -> io::Result<Users> {
        Ok(Users {
            passwd: read("/etc/passwd")?,
            group: read("/etc/group")?,
        })
    }

    /// The rights of `user` (`name`, `uid`, either with `:group` or `:gid`) with additional groups.
    pub(crate) fn ids(&self, user: &str, groups: &[String]) -> Result<Ids, String> {
        let (user, group) = match user.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (user, None),
        };
        let entry = self
            .passwd
            .lines()
            .map(|line| line.split(':').collect::<Vec<&str>>())
            .find(|fields| fields.len() >= 4 && (fields[0] == user || fields[2] == user));
        let number = |text: &str| text.parse::<u32>().ok();
        let (uid, own_gid, name) = match &entry {
            Some(fields) => (number(fields[2]), number(fields[3]), fields[0]),
            None => (number(user), Some(0), ""),
        };
        let uid = uid.ok_or_else(|| format!("unknown user {user}"))?;
        let gid = match group {
            Some(group) => self.gid(group)?,
            None => own_gid.unwrap_or(0),
        };
        let mut all = vec![gid];
        // Who names a group gets that one instead of the user's own ones.
        if group.is_none() {
            all.extend(self.groups_of(name));
        }
        for group in groups {
            all.push(self.gid(group)?);
        }
        all.sort_unstable();
        all.dedup();
        Ok(Ids {
            uid,
            gid,
            groups: all,
        })
    }

    fn gid(&self, group: &str) -> Result<u32, String> {
        self.group
            .lines()
            .map(|line| line.split(':').collect::<Vec<&str>>())
            .find(|fields| fields.len() >= 3 && fields[0] == group)
            .and_then(|fields| fields[2].parse().ok())
            .or_else(|| group.parse().ok())
            .ok_or_else(|| format!("unknown group {group}"))
    }

    fn groups_of(&self, user: &str) -> Vec<u32> {
        self.group
            .lines()
            .map(|line| line.split(':').collect::<Vec<&str>>())
            .filter(|fields| {
                fields.len() >= 4 && !user.is_empty() && fields[3].split(',').any(|one| one == user)
            })
            .filter_map(|fields| fields[2].parse().ok())
            .collect()
    }
}

fn read(path: &str) -> io::Result<String> {
    use std::io::Read as _;
    let mut text = Vec::new();
    fs::File::open(path)?
        .take(FILE_BYTES_MAX)
        .read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> Users {
        Users {
            passwd: "root:x:0:0:root:/root:/bin/bash\nweb:x:33:34::/srv:/bin/false\n".to_owned(),
            group: "root:x:0:\nwww:x:34:\nlog:x:4:web,other\nssl:x:5:other\n".to_owned(),
        }
    }

    fn ids(uid: u32, gid: u32, groups: &[u32]) -> Ids {
        Ids {
            uid,
            gid,
            groups: groups.to_vec(),
        }
    }

    #[test]
    fn names_and_numbers() {
        let users = users();
        assert_eq!(users.ids("web", &[]), Ok(ids(33, 34, &[4, 34])));
        assert_eq!(users.ids("33", &[]), Ok(ids(33, 34, &[4, 34])));
        assert_eq!(users.ids("web:ssl", &[]), Ok(ids(33, 5, &[5])));
        assert_eq!(users.ids("1000:1000", &[]), Ok(ids(1000, 1000, &[1000])));
        assert_eq!(users.ids("1000", &[]), Ok(ids(1000, 0, &[0])));
        assert_eq!(
            users.ids("root", &["ssl".to_owned(), "77".to_owned()]),
            Ok(ids(0, 0, &[0, 5, 77]))
        );
    }

    #[test]
    fn unknown_ones_are_named() {
        assert_eq!(
            users().ids("nobody", &[]),
            Err("unknown user nobody".to_owned())
        );
        assert_eq!(users().ids("web:x", &[]), Err("unknown group x".to_owned()));
        assert_eq!(users().ids("", &[]), Err("unknown user ".to_owned()));
    }
}
