"""The command line: commands, options, configuration and output. No other floor reads the environment."""
