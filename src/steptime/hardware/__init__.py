"""Machines: chips, memory, links, domains, systems and rents; number formats; money."""
