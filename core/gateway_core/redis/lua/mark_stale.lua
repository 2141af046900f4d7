-- What was charged of late stays known: no task of these takes a hold again after the rebuild.
disown()
return 1
