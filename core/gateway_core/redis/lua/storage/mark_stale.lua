-- From then on the pool has to be made again.
redis.call('HDEL', POOL, 'epoch')
return 1
