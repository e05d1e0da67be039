//! The small languages inside flag values: pairs, ports, mounts, limits, references.

use anyhow::{Context as _, bail};
use std::collections::BTreeMap;
use swarm_manager::api::types::port_config::{Protocol, PublishMode};
use swarm_manager::api::types::*;
use swarm_manager::cli::units::parse_bytes;

/// Readable by everyone inside the task: the mode of a secret or config file unless said otherwise.
const FILE_MODE: u32 = 0o444;

/// `KEY=VALUE` each; a key alone has an empty value.
pub fn pairs(texts: &[String]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut map = BTreeMap::new();
    for text in texts {
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        if key.is_empty() {
            bail!("{text:?} has no key: write KEY=VALUE");
        }
        map.insert(key.to_string(), value.to_string());
    }
    Ok(map)
}

/// `[NAME:]TARGET[/PROTO][:PUBLISHED[/PROTO]]`, published on the node itself.
pub fn port(text: &str) -> anyhow::Result<PortConfig> {
    let wrong =
        || format!("{text:?} is not a port: write for example 8080:80/tcp as web:80/tcp:8080");
    let mut parts: Vec<&str> = text.split(':').collect();
    let named = parts
        .first()
        .is_some_and(|first| !first.starts_with(|c: char| c.is_ascii_digit()));
    let name = if named {
        parts.remove(0).to_string()
    } else {
        String::new()
    };
    let (target_port, target_protocol) =
        port_and_protocol(parts.first().with_context(wrong)?).with_context(wrong)?;
    let (published_port, published_protocol) = match parts.get(1) {
        Some(part) => port_and_protocol(part).with_context(wrong)?,
        None => (0, target_protocol),
    };
    if parts.len() > 2 {
        bail!(wrong());
    }
    let protocol = match (target_protocol, published_protocol) {
        (Some(a), Some(b)) if a != b => bail!("{text:?} names two different protocols"),
        (a, b) => a.or(b).unwrap_or(Protocol::Tcp),
    };
    Ok(PortConfig {
        name,
        protocol: protocol as i32,
        target_port,
        published_port,
        publish_mode: PublishMode::Host as i32,
    })
}

fn port_and_protocol(text: &str) -> anyhow::Result<(u32, Option<Protocol>)> {
    let (number, protocol) = match text.split_once('/') {
        None => (text, None),
        Some((number, name)) => {
            let protocol = match name {
                "tcp" => Protocol::Tcp,
                "udp" => Protocol::Udp,
                "sctp" => Protocol::Sctp,
                other => bail!("{other:?} is not tcp, udp or sctp"),
            };
            (number, Some(protocol))
        }
    };
    let port: u16 = number
        .parse()
        .with_context(|| format!("{number:?} is not a port number"))?;
    Ok((port.into(), protocol))
}

/// `NAME=SOFT[:HARD]`.
pub fn ulimit(text: &str) -> anyhow::Result<container_spec::Ulimit> {
    let wrong = || format!("{text:?} is not a limit: write for example nofile=1024:2048");
    let (name, limits) = text.split_once('=').with_context(wrong)?;
    let (soft, hard) = limits.split_once(':').unwrap_or((limits, limits));
    Ok(container_spec::Ulimit {
        name: name.to_string(),
        soft: soft.parse().with_context(wrong)?,
        hard: hard.parse().with_context(wrong)?,
    })
}

/// `SOURCE:TARGET` of a directory on the host.
pub fn bind(text: &str) -> anyhow::Result<Mount> {
    let (source, target) = text
        .split_once(':')
        .with_context(|| format!("{text:?} is not SOURCE:TARGET"))?;
    Ok(Mount {
        r#type: mount::Type::Bind as i32,
        source: source.to_string(),
        target: target.to_string(),
        ..Default::default()
    })
}

/// `/PATH[:size=64m,mode=0700,ro|rw,exec|noexec]`.
pub fn tmpfs(text: &str) -> anyhow::Result<Mount> {
    let (target, options) = text.split_once(':').unwrap_or((text, ""));
    if !target.starts_with('/') {
        bail!("{target:?} is not an absolute path (in --tmpfs {text:?})");
    }
    let mut given = mount::TmpfsOptions::default();
    let mut readonly = false;
    let mut flags = Vec::new();
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("size", size)) => {
                given.size_bytes = parse_bytes(size).map_err(anyhow::Error::msg)?
            }
            Some(("mode", mode)) => {
                given.mode = u32::from_str_radix(mode, 8)
                    .with_context(|| format!("{mode:?} is not an octal mode, such as 0700"))?;
            }
            None if option == "ro" => readonly = true,
            None if option == "rw" => readonly = false,
            None if option == "exec" || option == "noexec" => flags.push(option.to_string()),
            _ => bail!(
                "unknown tmpfs option {option:?}: size=, mode=, ro, rw, exec and noexec are known"
            ),
        }
    }
    given.options = flags.join(",");
    Ok(Mount {
        r#type: mount::Type::Tmpfs as i32,
        target: target.to_string(),
        readonly,
        tmpfs_options: Some(given),
        ..Default::default()
    })
}

/// `NAME[:FILE]`; without a file the name is the file.
pub fn name_and_file(text: &str) -> (&str, &str) {
    text.split_once(':').unwrap_or((text, text))
}

/// A file inside the task, owned by root, readable by all.
pub fn file_target(name: &str) -> FileTarget {
    FileTarget {
        name: name.to_string(),
        uid: "0".to_string(),
        gid: "0".to_string(),
        mode: FILE_MODE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports() {
        let full = port("web:80/tcp:8080").unwrap();
        assert_eq!(
            (full.name.as_str(), full.target_port, full.published_port),
            ("web", 80, 8080)
        );
        assert_eq!(port("53/udp").unwrap().protocol(), Protocol::Udp);
        for wrong in ["", "web", "80/xyz", "80/tcp:81/udp", "80:81:82", "70000"] {
            assert!(port(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn memory_file_systems() {
        let mount = tmpfs("/run:size=64m,mode=0700,ro,noexec").unwrap();
        let options = mount.tmpfs_options.unwrap();
        assert_eq!(
            (options.size_bytes, options.mode, mount.readonly),
            (64 << 20, 0o700, true)
        );
        assert_eq!(options.options, "noexec");
        for wrong in ["run", "/run:size=big", "/run:mode=9", "/run:magic"] {
            assert!(tmpfs(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_and_values() {
        let map = pairs(&["a=1=2".to_string(), "b".to_string()]).unwrap();
        assert_eq!((map["a"].as_str(), map["b"].as_str()), ("1=2", ""));
        assert!(pairs(&["=x".to_string()]).is_err());
        let limit = ulimit("nofile=10:20").unwrap();
        assert_eq!((limit.soft, limit.hard), (10, 20));
    }
}
