"""What the terminal shows: tables, bars and plots of each result, made of the same widgets."""
