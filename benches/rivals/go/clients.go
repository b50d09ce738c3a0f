package main

// Connects go-redis: with one connection for each of 64 tasks, and from [manyTasks] tasks on with
// its automatic pipelining, which its documentation calls experimental and recommends if many
// goroutines issue commands concurrently.

import (
	"context"

	"github.com/redis/go-redis/v9"
)

const manyTasks = 16

type client struct{ few, many redis.UniversalClient }

func newClient(server string) (client, error) {
	few := redis.NewClient(&redis.Options{Addr: server, PoolSize: 64})
	many, err := few.AutoPipeline()
	if err != nil {
		return client{}, err
	}
	return client{few: few, many: many}, few.Ping(context.Background()).Err()
}

func (c client) of(tasks int) redis.UniversalClient {
	if tasks >= manyTasks {
		return c.many
	}
	return c.few
}
