"""Where the settings of `warren broker` come from: flags, the environment, files, and defaults, in this order."""
