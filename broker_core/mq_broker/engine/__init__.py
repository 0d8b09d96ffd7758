"""The only writer: commands of many threads become turns of one journal; rows leave by any thread."""
