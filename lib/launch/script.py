def as_script(*a): raise NotImplementedError
