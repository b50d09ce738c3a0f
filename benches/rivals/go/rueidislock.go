package main

// rueidislock: waits for what the server pushes when a key changes (client-side caching), renews after half of its lease, and tells a
// holder of a loss through its context. Unlocking waits for the key to be deleted.
//
// `KeyMajority` is 1, since one server has nothing to vote about (its default would take three keys), and `NoLoopTracking` is on,
// which its documentation recommends from Redis 7.0.5 on. `TryNextAfter` is a second: at its default of 20 ms, a try that takes longer
// fails, and its task may wait for ever for a push about a key that nobody has. Its lease belongs to a locker, so there is one for each. It has no Redlock
// over servers that know nothing of each other.

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
		return nil, cannot("no Redlock over servers of their own: its keys go through one client")
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
	// The context is that of the holder, too: it must not end with the wait.
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
