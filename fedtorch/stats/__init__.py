"""What silos have together, counted before anybody trains: labels, lengths, words; `fedtorch stats`."""
