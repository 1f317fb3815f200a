"""What other programs also read or write: names, config files, profiles, CDI specs. Pure data, no input or output."""
