package main

// The floor of the language: go-redis alone, with SET NX PX and a script that compares and deletes.
// It polls every millisecond, renews nothing, and reports no loss. The connections are those of
// clients.go.

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

const poll = time.Millisecond

var compareAndDelete = redis.NewScript(
	`if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end`)

type plain struct{ client client }

func newPlain(servers []string) (library, error) {
	if len(servers) > 1 {
		return nil, cannot("it has no Redlock")
	}
	client, err := newClient(servers[0])
	if err == nil {
		err = compareAndDelete.Load(context.Background(), client.few).Err()
	}
	return plain{client}, err
}

func (p plain) lock(key string, lease, wait time.Duration, tasks int) (lock, error) {
	ctx, client, begun := context.Background(), p.client.of(tasks), time.Now()
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		return nil, err
	}
	held := plainLock{client: client, key: key, token: hex.EncodeToString(random)}
	for {
		taken, err := client.SetNX(ctx, key, held.token, lease).Result()
		if err != nil || taken {
			return held, err
		}
		if time.Since(begun) >= wait {
			return nil, errWaited
		}
		time.Sleep(poll)
	}
}

type plainLock struct {
	client     redis.UniversalClient
	key, token string
}

func (l plainLock) unlock() error {
	deleted, err := compareAndDelete.EvalSha(context.Background(), l.client, []string{l.key}, l.token).Int()
	if err == nil && deleted != 1 {
		err = errors.New("the lock was not ours any more")
	}
	return err
}

func (plainLock) lost() <-chan struct{} { return nil }
