"""Jobs of `warren pipeline`: one package for each job, and the code that runs them."""
