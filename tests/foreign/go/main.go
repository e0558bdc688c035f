// Contends with redsync for a lock: URL KEY RECORD NAME ROUNDS. See ../../foreign.rs.
package main

import (
	"context"
	"errors"
	"log"
	"math/rand"
	"os"
	"strconv"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func main() {
	url, key, record, name := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	rounds, err := strconv.Atoi(os.Args[5])
	check(err)
	options, err := redis.ParseURL(url)
	check(err)
	ctx, client := context.Background(), redis.NewClient(options)
	locks := redsync.New(goredis.NewPool(client))
	for range rounds {
		mutex := locks.NewMutex(key, redsync.WithExpiry(10*time.Second))
		acquire(mutex)
		check(client.RPush(ctx, record, "enter "+name).Err())
		pause(3 * time.Millisecond)
		check(client.RPush(ctx, record, "leave "+name).Err())
		if ok, err := mutex.Unlock(); !ok {
			log.Fatal("not ours any more: ", err)
		}
		pause(30 * time.Millisecond)
	}
}

// After its 32 tries it gives up; here it goes on.
func acquire(mutex *redsync.Mutex) {
	for {
		err := mutex.Lock()
		var taken *redsync.ErrTaken
		if err == nil {
			return
		} else if !errors.As(err, &taken) && !errors.Is(err, redsync.ErrFailed) {
			log.Fatal(err)
		}
	}
}

func pause(most time.Duration) {
	time.Sleep(time.Duration(rand.Int63n(int64(most))))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
