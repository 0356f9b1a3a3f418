-- P7: the one clock. Only a test's database replaces this function.
CREATE FUNCTION safepoint.now() RETURNS timestamptz LANGUAGE sql VOLATILE
SET search_path = safepoint, pg_temp AS $$ SELECT clock_timestamp() $$;
