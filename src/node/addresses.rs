//! Which address a node listens on and which one it tells the others.
//!
//! An unspecified address is never advertised: a worker that is told `0.0.0.0` would dial itself. When
//! none is given and the machine has exactly one usable address, that one is taken; with several the
//! choice is the operator's.

use std::net::{IpAddr, SocketAddr};

/// Port of the remote API: what `docker swarm join HOST` dials when no port is given.
pub const DEFAULT_REMOTE_PORT: u16 = 2377;

/// Why no address could be settled on. The first two texts are those that Docker's users know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("could not find the system's IP address - specify one with --advertise-remote-api")]
    None,
    #[error(
        "could not choose an IP address to advertise since this system has multiple addresses {0} - specify one with --advertise-remote-api"
    )]
    Several(String),
    #[error("invalid {flag} {text:?}: {reason}")]
    Invalid {
        flag: &'static str,
        text: String,
        reason: String,
    },
}

/// One address of a network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceAddress {
    pub interface: String,
    pub ip: IpAddr,
}

/// The addresses of this machine that another one could reach: no loopback, no link-local ones, none of
/// the bridges that a container engine makes for itself.
pub fn usable_addresses() -> std::io::Result<Vec<InterfaceAddress>> {
    let all = if_addrs::get_if_addrs()?;
    Ok(all
        .into_iter()
        .filter(|interface| !interface.is_loopback() && !interface.is_link_local())
        .filter(|interface| !is_engine_bridge(&interface.name))
        .map(|interface| InterfaceAddress {
            ip: interface.ip(),
            interface: interface.name,
        })
        .collect())
}

fn is_engine_bridge(name: &str) -> bool {
    name == "docker0"
        || name == "docker_gwbridge"
        || name.starts_with("veth")
        || name.starts_with("br-")
}

/// Parses `HOST:PORT`, `HOST` or `[V6]:PORT` with an IP or an interface name as host.
pub fn parse_listen(flag: &'static str, text: &str) -> Result<SocketAddr, AddressError> {
    let invalid = |reason: String| AddressError::Invalid {
        flag,
        text: text.to_string(),
        reason,
    };
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, DEFAULT_REMOTE_PORT));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => {
            let port = port
                .parse()
                .map_err(|_| invalid(format!("{port:?} is not a port number")))?;
            (host, port)
        }
        None => (text, DEFAULT_REMOTE_PORT),
    };
    let on_interface: Vec<IpAddr> = if_addrs::get_if_addrs()
        .map_err(|error| invalid(format!("cannot list the network interfaces: {error}")))?
        .into_iter()
        .filter(|interface| interface.name == host)
        .map(|interface| interface.ip())
        .collect();
    match on_interface
        .iter()
        .find(|ip| ip.is_ipv4())
        .or(on_interface.first())
    {
        Some(ip) => Ok(SocketAddr::new(*ip, port)),
        None => Err(invalid(
            "it must be an IP address or a network interface, with an optional port".to_string(),
        )),
    }
}

/// The address to tell others: the given one, else the listen address if it is a real one, else the only
/// usable one of `usable` with the listen port. Port 0 of a given address means the bound port.
pub fn advertise(
    given: Option<&str>,
    bound: SocketAddr,
    usable: &[InterfaceAddress],
) -> Result<SocketAddr, AddressError> {
    const FLAG: &str = "--advertise-remote-api";
    if let Some(text) = given {
        let mut address = parse_listen(FLAG, text)?;
        if address.ip().is_unspecified() {
            return Err(AddressError::Invalid {
                flag: FLAG,
                text: text.to_string(),
                reason:
                    "it must be a non-zero IP address or a network interface, with an optional port"
                        .to_string(),
            });
        }
        let names_port = text
            .parse::<SocketAddr>()
            .is_ok_and(|address| address.port() != 0);
        if !names_port {
            address.set_port(bound.port());
        }
        return Ok(address);
    }
    if !bound.ip().is_unspecified() {
        return Ok(bound);
    }
    Ok(SocketAddr::new(only_address(usable)?, bound.port()))
}

/// The one address of the first family that has any, IPv4 before IPv6.
fn only_address(usable: &[InterfaceAddress]) -> Result<IpAddr, AddressError> {
    for v4 in [true, false] {
        let family: Vec<&InterfaceAddress> = usable
            .iter()
            .filter(|address| address.ip.is_ipv4() == v4)
            .collect();
        match family.as_slice() {
            [] => continue,
            [one] => return Ok(one.ip),
            [first, second, ..] => return Err(AddressError::Several(several(first, second))),
        }
    }
    Err(AddressError::None)
}

fn several(first: &InterfaceAddress, second: &InterfaceAddress) -> String {
    if first.interface == second.interface {
        format!(
            "on interface {} ({} and {})",
            first.interface, first.ip, second.ip
        )
    } else {
        format!(
            "on different interfaces ({} on {} and {} on {})",
            first.ip, first.interface, second.ip, second.interface
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(interface: &str, ip: &str) -> InterfaceAddress {
        InterfaceAddress {
            interface: interface.to_string(),
            ip: ip.parse().unwrap(),
        }
    }

    #[test]
    fn listen_addresses() {
        let parse = |text| parse_listen("--listen-remote-api", text);
        assert_eq!(parse("0.0.0.0:4000"), Ok("0.0.0.0:4000".parse().unwrap()));
        assert_eq!(parse("127.0.0.1"), Ok("127.0.0.1:2377".parse().unwrap()));
        assert_eq!(parse("lo:99"), Ok("127.0.0.1:99".parse().unwrap()));
        assert_eq!(parse("[::1]:5"), Ok("[::1]:5".parse().unwrap()));
        for wrong in ["", "nowhere0:1", "127.0.0.1:x", "127.0.0.1:70000"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_only_address_is_advertised_and_several_are_listed() {
        let any: SocketAddr = "0.0.0.0:2377".parse().unwrap();
        let one = [on("eth0", "10.0.0.5"), on("eth0", "fd00::5")];
        assert_eq!(
            advertise(None, any, &one),
            Ok("10.0.0.5:2377".parse().unwrap())
        );
        assert_eq!(advertise(None, any, &[]), Err(AddressError::None));
        let two = [on("eth0", "10.0.0.5"), on("eth1", "10.1.0.5")];
        assert_eq!(
            advertise(None, any, &two).unwrap_err().to_string(),
            "could not choose an IP address to advertise since this system has multiple addresses on \
             different interfaces (10.0.0.5 on eth0 and 10.1.0.5 on eth1) - specify one with \
             --advertise-remote-api"
        );
        let same = [on("eth0", "10.0.0.5"), on("eth0", "10.0.0.6")];
        assert!(
            advertise(None, any, &same)
                .unwrap_err()
                .to_string()
                .contains("on interface eth0 (10.0.0.5 and 10.0.0.6)")
        );
    }

    #[test]
    fn a_given_address_wins_but_never_an_unspecified_one() {
        let bound: SocketAddr = "127.0.0.1:4001".parse().unwrap();
        assert_eq!(advertise(None, bound, &[]), Ok(bound));
        assert_eq!(
            advertise(Some("10.0.0.9"), bound, &[]),
            Ok("10.0.0.9:4001".parse().unwrap())
        );
        assert_eq!(
            advertise(Some("10.0.0.9:7"), bound, &[]),
            Ok("10.0.0.9:7".parse().unwrap())
        );
        assert!(advertise(Some("0.0.0.0"), bound, &[]).is_err());
    }
}
