"""Which addresses are on the public internet, for the publisher of webhooks and for the doctor."""

from __future__ import annotations

import ipaddress

REFUSED_NETWORKS = [
    ipaddress.ip_network(network)
    for network in ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16", "3fff::/20")
]
"""Python counts these as public, but nobody has a webhook there: metadata services of Azure and Oracle, ranges that
IANA has reserved or withdrawn, old ways to IPv4."""
PUBLIC = ipaddress.ip_network("2000::/3")
"""All of IPv6 that IANA has given out for the public internet."""
EMBEDDING = [ipaddress.ip_network(network) for network in ("::ffff:0:0/96", "64:ff9b::/96")]
"""IPv6 addresses that stand for the IPv4 address at their end: mapped ones, and NAT64's."""


def is_public(address: str) -> bool:
    """Whether an address is on the public internet."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        if any(ip in network for network in EMBEDDING):
            ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        elif ip not in PUBLIC:
            return False
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in REFUSED_NETWORKS)
