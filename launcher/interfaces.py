"""Network interfaces of this machine, and which of its addresses other hosts reach."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import socket
import struct

_SIOCGIFCONF = 0x8912
_SIOCGIFNETMASK = 0x891B
_REQUEST_BYTES = 40  # struct ifreq on 64-bit Linux
_LINK_LOCAL = 0x20  # scope in /proc/net/if_inet6
_ANY_PORT = 9  # a datagram socket that is connected sends nothing


def addresses_by_name() -> dict[str, list[str]]:
    """Addresses of each interface, also of those that have none; IPv4 first."""
    found: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    for name, address in _ipv4():
        found.setdefault(name, []).append(address)
    for name, address in _ipv6():
        found.setdefault(name, []).append(address)
    return found


def common_to_hosts(host: str, interfaces: dict[str, dict[str, list[str]]]) -> list[str]:
    """Of a host's interfaces (`interfaces`: of each host, addresses by name) those that lead to no
    other one: with an address that others have too, like a bridge for containers, which is
    172.17.0.1 on each. None if the host would have no interface left."""
    elsewhere = {
        address
        for other, by_name in interfaces.items()
        if other != host
        for addresses in by_name.values()
        for address in addresses
    }
    own = {
        name: [address for address in addresses if not is_loopback(address)]
        for name, addresses in interfaces[host].items()
    }
    common = [name for name, addresses in own.items() if elsewhere.intersection(addresses)]
    left = [name for name, addresses in own.items() if addresses and name not in common]
    return sorted(common) if left else []


def _ipv4() -> list[tuple[str, str]]:
    room = array.array("B", bytes(256 * _REQUEST_BYTES))
    where, _ = room.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        answer = fcntl.ioctl(asking, _SIOCGIFCONF, struct.pack("iP", len(room), where))
    used, _ = struct.unpack("iP", answer)
    found = []
    for at in range(0, used, _REQUEST_BYTES):
        request = room[at : at + _REQUEST_BYTES].tobytes()
        name = request[:16].split(b"\0", 1)[0].decode(errors="replace").split(":")[0]
        found.append((name, socket.inet_ntoa(request[20:24])))
    return found


def _ipv6() -> list[tuple[str, str]]:
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:  # no IPv6 here
        return []
    return [
        (row[5], str(ipaddress.IPv6Address(int(row[0], 16))))
        for row in rows
        if int(row[3], 16) != _LINK_LOCAL
    ]


def network_of(name: str) -> str | None:
    """The IPv4 network of an interface, as 10.77.0.0/24: what it is called on every host."""
    address = next((a for a in addresses_by_name().get(name, []) if ":" not in a), None)
    if address is None:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        request = struct.pack("16s24x", name.encode()[:15])
        answer = fcntl.ioctl(asking, _SIOCGIFNETMASK, request)
    mask = socket.inet_ntoa(answer[20:24])
    return str(ipaddress.IPv4Network(f"{address}/{mask}", strict=False))


def source_towards(address: str) -> str | None:
    """Our address on the route to another; None when there is no route."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, _ANY_PORT))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def described(found: dict[str, list[str]]) -> str:
    """As a sentence says it: "eth0 (10.77.0.1), lo (127.0.0.1)"."""
    return ", ".join(
        f"{name} ({' '.join(addresses)})" if addresses else name
        for name, addresses in found.items()
    )
