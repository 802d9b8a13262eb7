"""One forward pass: operators, collectives, memory, layout, engine, step and its range. The heart of steptime."""
