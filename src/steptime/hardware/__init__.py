"""Hardware: chips, memory, links, systems, rents, number formats and unit cost."""
