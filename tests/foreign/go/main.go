// Contends with redsync for a lock: URL KEY RECORD NAME ROUNDS. See ../../foreign.rs.
// Or for the bench: contend URL 1, with the lines of ../../../bench/src/contention/line.rs.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"time"
	_ "unsafe" // for nanotime

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func main() {
	if os.Args[1] == "contend" {
		contend(os.Args[2])
	} else {
		share()
	}
}

func share() {
	url, key, record, name := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	rounds, err := strconv.Atoi(os.Args[5])
	check(err)
	options, err := redis.ParseURL(url)
	check(err)
	ctx, client := context.Background(), redis.NewClient(options)
	locks := redsync.New(goredis.NewPool(client))
	for range rounds {
		mutex := locks.NewMutex(key, redsync.WithExpiry(10*time.Second))
		acquire(ctx, mutex)
		check(client.RPush(ctx, record, "enter "+name).Err())
		pause(3 * time.Millisecond)
		check(client.RPush(ctx, record, "leave "+name).Err())
		if ok, err := mutex.Unlock(); !ok {
			log.Fatal("not ours any more: ", err)
		}
		pause(30 * time.Millisecond)
	}
}

func contend(url string) {
	options, err := redis.ParseURL(url)
	check(err)
	client := redis.NewClient(options)
	check(client.Ping(context.Background()).Err())
	locks := redsync.New(goredis.NewPool(client))
	out := bufio.NewWriter(os.Stdout)
	fmt.Fprintf(out, "ready %d\n", nanotime())
	check(out.Flush())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		words := strings.Fields(in.Text())
		times := [3]int64{}
		for i := range times {
			times[i], err = strconv.ParseInt(words[1+i], 10, 64)
			check(err)
		}
		begin, end, hold := times[0], times[1], time.Duration(times[2])*time.Microsecond
		mutex := locks.NewMutex(strings.Split(words[0], ",")[0], redsync.WithExpiry(10*time.Second))
		time.Sleep(time.Duration(begin - nanotime()))
		for asked := nanotime(); asked < end; asked = nanotime() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(end-asked))
			inside := acquire(ctx, mutex)
			cancel()
			if !inside {
				fmt.Fprintf(out, "0 %d 0 0\n", asked)
				break
			}
			entered := nanotime()
			time.Sleep(hold)
			left := nanotime()
			if ok, err := mutex.Unlock(); !ok {
				log.Fatal("not ours any more: ", err)
			}
			fmt.Fprintf(out, "0 %d %d %d\n", asked, entered, left)
		}
		fmt.Fprintln(out, "over")
		check(out.Flush())
	}
}

// The clock that all processes share, which package time does not tell.
//
//go:linkname nanotime runtime.nanotime
func nanotime() int64

// After its 32 tries it gives up; here it goes on, until the context ends.
func acquire(ctx context.Context, mutex *redsync.Mutex) bool {
	for {
		err := mutex.LockContext(ctx)
		var taken *redsync.ErrTaken
		if err == nil {
			return true
		} else if ctx.Err() != nil {
			return false
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
