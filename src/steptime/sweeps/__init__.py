"""Questions over many values: sweeps, rankings, sensitivities, designs, and limits on context."""
