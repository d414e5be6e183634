"""Discovery of workers: sources that are queried again and again, by which workers join and leave the fleet."""
