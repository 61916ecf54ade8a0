"""Configuration of `warren broker`, from flags, environment variables, files and defaults, in this order of precedence."""
