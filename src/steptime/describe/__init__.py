"""What there is to know about one model, system or engine, as plain data that text and JSON share."""
