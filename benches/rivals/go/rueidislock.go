package main

// rueidislock: waits for invalidation messages (client-side caching), renews after half of its
// lease, and reports a loss through its context. Unlocking waits until the key is deleted.
//
// `KeyMajority` is 1, because there is one server (the default would use three keys), and
// `NoLoopTracking` is on, which its documentation recommends from Redis 7.0.5 on. `TryNextAfter` is
// 1 s: with the default of 20 ms, a try that takes longer fails, and its task may wait forever for
// a message about a free key. The lease belongs to a locker, so there is one locker per lease. It
// has no Redlock over independent servers.

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

type rueidislockLibrary struct {
	server  string
	guard   sync.Mutex
	lockers map[time.Duration]rueidislock.Locker
}

func newRueidislock(servers []string) (library, error) {
	if len(servers) > 1 {
		return nil, cannot("it has no Redlock over independent servers: all keys use one client")
	}
	library := &rueidislockLibrary{server: servers[0], lockers: map[time.Duration]rueidislock.Locker{}}
	_, err := library.locker(lease)
	return library, err
}

func (l *rueidislockLibrary) locker(lease time.Duration) (rueidislock.Locker, error) {
	l.guard.Lock()
	defer l.guard.Unlock()
	if locker := l.lockers[lease]; locker != nil {
		return locker, nil
	}
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{l.server}},
		KeyValidity:    lease,
		KeyMajority:    1,
		NoLoopTracking: true,
		TryNextAfter:   time.Second,
	})
	l.lockers[lease] = locker
	return locker, err
}

func (l *rueidislockLibrary) lock(key string, lease, wait time.Duration, _ int) (lock, error) {
	locker, err := l.locker(lease)
	if err != nil {
		return nil, err
	}
	// The context also belongs to the holder: it must not end with the wait.
	source, cancel := context.WithCancel(context.Background())
	limit := time.AfterFunc(wait, cancel)
	held, release, err := locker.WithContext(source, key)
	if err != nil || !limit.Stop() {
		cancel()
		if errors.Is(err, context.Canceled) {
			err = errWaited
		}
		return nil, err
	}
	return rueidisLock{context: held, release: release}, nil
}

type rueidisLock struct {
	context context.Context
	release context.CancelFunc
}

func (l rueidisLock) unlock() error {
	l.release()
	return nil
}

func (l rueidisLock) lost() <-chan struct{} { return l.context.Done() }
