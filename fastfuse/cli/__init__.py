"""The command line: commands, options, configuration, output. The only floor that reads the environment."""
