"""What a run tells its user: failure texts, the facts line, the table at the end, lines to paste."""
