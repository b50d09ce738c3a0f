package main

// redsync over go-redis: polls every 50 to 250 ms, its default, and awaits each release. It does
// not renew locks, and reports no loss. Several servers are its Redlock.
//
// Every lock is a separate Mutex, as its documentation recommends. `WithTries` is so large that a
// wait ends by its context, and not by the default count of 32. The connections are those of
// clients.go.

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
)

type redsyncLibrary struct{ few, many *redsync.Redsync }

func newRedsync(servers []string) (library, error) {
	var few, many []redis.Pool
	for _, server := range servers {
		client, err := newClient(server)
		if err != nil {
			return nil, err
		}
		few = append(few, goredis.NewPool(client.few))
		many = append(many, goredis.NewPool(client.many))
	}
	return redsyncLibrary{few: redsync.New(few...), many: redsync.New(many...)}, nil
}

func (l redsyncLibrary) lock(key string, lease, wait time.Duration, tasks int) (lock, error) {
	locks := l.few
	if tasks >= manyTasks {
		locks = l.many
	}
	mutex := locks.NewMutex(key, redsync.WithExpiry(lease), redsync.WithTries(math.MaxInt))
	within, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	err := mutex.LockContext(within)
	if errors.Is(err, redsync.ErrFailed) && within.Err() != nil {
		return nil, errWaited
	}
	return redsyncLock{mutex}, err
}

type redsyncLock struct{ mutex *redsync.Mutex }

func (l redsyncLock) unlock() error {
	_, err := l.mutex.Unlock()
	return err
}

func (redsyncLock) lost() <-chan struct{} { return nil }
