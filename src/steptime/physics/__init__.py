"""Physics of one forward pass: operators, collectives, memory, layout and engine."""
